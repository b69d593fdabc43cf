//! The OpenAPI document, generated from the route table.

mod demands;

use axum::http::Method;
use lazaret_api::Problem;
use serde_json::Value;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{Schema, SchemaType, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, ObjectBuilder, OpenApi, OpenApiBuilder, PathItem, Paths,
    Ref, RefOr, Required, ResponseBuilder,
};
use utoipa::{PartialSchema, ToSchema};

use crate::auth::Access;
use crate::ndjson::NDJSON;

/// The media types and schemas of a request or a response.
type Contents = Vec<(&'static str, RefOr<Schema>)>;

/// The description of a route.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    pub(crate) kind: RequestKind,
    summary: &'static str,
    query: Vec<QueryParameter>,
    body: Option<Contents>,
    answers: Vec<(u16, Contents)>,
    schemas: Vec<(String, RefOr<Schema>)>,
}

/// A query parameter.
struct QueryParameter {
    name: &'static str,
    about: &'static str,
    required: bool,
    schema: RefOr<Schema>,
}

/// The kind of request that a route accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// Reads.
    Read,
    /// Changes something, once per idempotency key.
    Change,
    /// Accepts a message; the idempotency key may be its id.
    Message,
    /// Accepts many messages, once per idempotency key.
    Batch,
    /// Imports letters, with a longer timeout.
    Import,
    /// Reads what is redacted, for a reason. A repetition is recorded again.
    Reveal,
}

fn text() -> RefOr<Schema> {
    RefOr::T(Schema::Object(ObjectBuilder::new().schema_type(Type::String).build()))
}

/// Any content.
fn anything() -> RefOr<Schema> {
    RefOr::T(Schema::Object(ObjectBuilder::new().schema_type(SchemaType::AnyValue).build()))
}

/// One of these words.
fn one_of(words: &[&'static str]) -> RefOr<Schema> {
    let words = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words.iter().copied()));
    RefOr::T(Schema::Object(words.build()))
}

/// A number that the server accepts and clamps.
fn count() -> RefOr<Schema> {
    let number =
        ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0_usize)).maximum(Some(usize::MAX));
    RefOr::T(Schema::Object(number.build()))
}

impl Route {
    fn new(
        method: Method,
        path: &'static str,
        access: Access,
        kind: RequestKind,
        summary: &'static str,
    ) -> Self {
        Self {
            method,
            path,
            access,
            kind,
            summary,
            query: Vec::new(),
            body: None,
            answers: Vec::new(),
            schemas: Vec::new(),
        }
    }

    pub(crate) fn get(path: &'static str, access: Access, summary: &'static str) -> Self {
        Self::new(Method::GET, path, access, RequestKind::Read, summary)
    }

    /// A POST route of this kind.
    pub(crate) fn post(path: &'static str, access: Access, kind: RequestKind, summary: &'static str) -> Self {
        Self::new(Method::POST, path, access, kind, summary)
    }

    /// A change with a JSON body.
    pub(crate) fn change<T: ToSchema>(
        method: Method,
        path: &'static str,
        access: Access,
        summary: &'static str,
    ) -> Self {
        Self::new(method, path, access, RequestKind::Change, summary).json_body::<T>()
    }

    /// A request for what is redacted, with a JSON body.
    pub(crate) fn reveal<T: ToSchema>(path: &'static str, access: Access, summary: &'static str) -> Self {
        Self::new(Method::POST, path, access, RequestKind::Reveal, summary).json_body::<T>()
    }

    fn json_body<T: ToSchema>(mut self) -> Self {
        let schema = self.refer::<T>();
        self.body = Some(vec![("application/json", schema)]);
        self
    }

    /// Adds a request body of these media types, with any content: lines that make no sense are accepted or reported one by one.
    pub(crate) fn body(mut self, types: &[&'static str]) -> Self {
        self.body = Some(types.iter().map(|media_type| (*media_type, anything())).collect());
        self
    }

    /// Adds an optional query parameter.
    pub(crate) fn query(self, name: &'static str, about: &'static str) -> Self {
        self.parameter(name, about, false, text())
    }

    /// Adds an optional query parameter that is one of these words.
    pub(crate) fn query_of(self, name: &'static str, about: &'static str, words: &[&'static str]) -> Self {
        self.parameter(name, about, false, one_of(words))
    }

    /// Adds an optional query parameter that is a number; too large ones are cut.
    pub(crate) fn number(self, name: &'static str, about: &'static str) -> Self {
        self.parameter(name, about, false, count())
    }

    /// Adds a required query parameter.
    pub(crate) fn required(self, name: &'static str, about: &'static str) -> Self {
        self.parameter(name, about, true, text())
    }

    fn parameter(
        mut self,
        name: &'static str,
        about: &'static str,
        required: bool,
        schema: RefOr<Schema>,
    ) -> Self {
        self.query.push(QueryParameter { name, about, required, schema });
        self
    }

    /// Adds the paging parameters.
    pub(crate) fn paged(self) -> Self {
        let paged = self.query("after", "The `next` value of the previous page");
        paged.parameter("limit", "The page size; clamped", false, count())
    }

    /// Adds a JSON response.
    pub(crate) fn answers<T: ToSchema>(mut self, status: u16) -> Self {
        let schema = self.refer::<T>();
        self.answers.push((status, vec![("application/json", schema)]));
        self
    }

    /// Adds NDJSON to the last response.
    pub(crate) fn or_ndjson(mut self) -> Self {
        if let Some((_, contents)) = self.answers.last_mut() {
            contents.push((NDJSON, text()));
        }
        self
    }

    /// Adds a response that is not JSON.
    pub(crate) fn answers_with(mut self, status: u16, media_type: &'static str) -> Self {
        self.answers.push((status, vec![(media_type, text())]));
        self
    }

    /// Adds the schema of the items of a response that is not JSON.
    pub(crate) fn item_schema<T: ToSchema>(mut self) -> Self {
        self.refer::<T>();
        self
    }

    /// Adds a JSON response without a schema.
    pub(crate) fn answers_any_json(mut self, status: u16) -> Self {
        self.answers.push((status, vec![("application/json", anything())]));
        self
    }

    /// Adds a response without a body.
    pub(crate) fn answers_nothing(mut self, status: u16) -> Self {
        self.answers.push((status, Vec::new()));
        self
    }

    fn refer<T: ToSchema>(&mut self) -> RefOr<Schema> {
        T::schemas(&mut self.schemas);
        self.schemas.push((T::name().into_owned(), <T as PartialSchema>::schema()));
        RefOr::Ref(Ref::from_schema_name(T::name()))
    }

    fn operation_id(&self) -> String {
        let path = self.path.trim_start_matches("/v1").trim_matches('/');
        let parts = path.split('/').map(|part| part.trim_matches(|c| c == '{' || c == '}').replace('.', "-"));
        let path: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
        format!("{}-{}", self.method.as_str().to_lowercase(), path.join("-"))
    }
}

/// Builds the document.
pub(crate) struct Document {
    paths: Paths,
    schemas: Vec<(String, RefOr<Schema>)>,
}

impl Document {
    pub(crate) fn new() -> Self {
        let mut schemas = Vec::new();
        Problem::schemas(&mut schemas);
        schemas.push((Problem::name().into_owned(), Problem::schema()));
        Self { paths: Paths::new(), schemas }
    }

    /// Adds a route.
    pub(crate) fn add(&mut self, route: Route) {
        let mut operation = OperationBuilder::new().operation_id(Some(route.operation_id()));
        operation = operation.summary(Some(route.summary)).description(Some(describe(route.access)));
        for name in route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
            let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path);
            operation = operation.parameter(parameter.required(Required::True).schema(Some(text())));
        }
        for QueryParameter { name, about, required, schema } in route.query {
            let required = if required { Required::True } else { Required::False };
            let parameter =
                ParameterBuilder::new().name(name).parameter_in(ParameterIn::Query).required(required);
            operation = operation.parameter(parameter.description(Some(about)).schema(Some(schema)));
        }
        if !matches!(route.kind, RequestKind::Read | RequestKind::Reveal) {
            let description = match route.kind {
                RequestKind::Message => {
                    "The message id, unless another header sets it; duplicates are not accepted twice"
                }
                _ => "A request that is repeated with the same key is executed once",
            };
            let parameter = ParameterBuilder::new().name("Idempotency-Key").parameter_in(ParameterIn::Header);
            operation = operation.parameter(parameter.description(Some(description)).schema(Some(text())));
        }
        if let Some(contents) = route.body {
            let mut body = RequestBodyBuilder::new().required(Some(Required::True));
            for (media_type, schema) in contents {
                body = body.content(media_type, ContentBuilder::new().schema(Some(schema)).build());
            }
            operation = operation.request_body(Some(body.build()));
        }
        for (status, contents) in route.answers {
            let mut response = ResponseBuilder::new().description("Success");
            for (media_type, schema) in contents {
                response = response.content(media_type, ContentBuilder::new().schema(Some(schema)).build());
            }
            operation = operation.response(status.to_string(), response.build());
        }
        let problem = RefOr::Ref(Ref::from_schema_name(Problem::name()));
        let problem = ContentBuilder::new().schema(Some(problem)).build();
        let problem = ResponseBuilder::new().description("An error").content(Problem::MEDIA_TYPE, problem);
        operation = operation.response("default", problem.build());
        if route.access != Access::Public {
            operation = operation.security(SecurityRequirement::new("token", route.access.scopes()));
        }
        let method = match route.method {
            Method::POST => HttpMethod::Post,
            Method::PUT => HttpMethod::Put,
            _ => HttpMethod::Get,
        };
        let item = PathItem::new(method, operation);
        match self.paths.paths.get_mut(route.path) {
            Some(known) => known.merge_operations(item),
            None => {
                self.paths.paths.insert(route.path.to_owned(), item);
            }
        }
        self.schemas.extend(route.schemas);
    }

    /// Builds the document.
    pub(crate) fn finish(self) -> Value {
        let about = "Triage and replay of failed messages of event consumers. Without configured tokens the API is \
                     unauthenticated and serves loopback addresses only.";
        let info = InfoBuilder::new().title("Lazaret").version("1").description(Some(about));
        let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        let mut components = ComponentsBuilder::new().security_scheme("token", token);
        for (name, schema) in self.schemas {
            components = components.schema(name, schema);
        }
        let components = Some(components.build());
        let document: OpenApi =
            OpenApiBuilder::new().info(info).paths(self.paths).components(components).build();
        let mut document = serde_json::to_value(document).unwrap_or_default();
        demands::add(&mut document);
        document
    }
}

fn describe(access: Access) -> String {
    match access {
        Access::Public => "Public.".to_owned(),
        Access::Authenticated => "Requires any valid token.".to_owned(),
        Access::Scope(scope) => format!("Requires the scope `{scope}`."),
        Access::AnyScope(_) => {
            format!("Requires the scope {}, depending on the request.", access.scopes().join(" or "))
        }
    }
}
