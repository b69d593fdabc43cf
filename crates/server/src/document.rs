//! The OpenAPI document, made of the same lines that make the routes.

use axum::http::Method;
use lazaret_api::Problem;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{Schema, SchemaType, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, ObjectBuilder, OpenApi, OpenApiBuilder, PathItem, Paths,
    Ref, RefOr, Required, ResponseBuilder,
};
use utoipa::{PartialSchema, ToSchema};

use crate::guard::Need;
use crate::stream::NDJSON;

/// What an answer may consist of: media types and schemas.
type Contents = Vec<(&'static str, RefOr<Schema>)>;

/// What is said about a route.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) need: Need,
    pub(crate) pace: Pace,
    about: &'static str,
    query: Vec<(&'static str, &'static str, bool)>,
    body: Option<(Vec<&'static str>, RefOr<Schema>)>,
    answers: Vec<(u16, Contents)>,
    schemas: Vec<(String, RefOr<Schema>)>,
}

/// How a route goes about its requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// It looks at something.
    Read,
    /// It changes something, once for each idempotency key.
    Change,
    /// It takes in a message, whose identity an idempotency key can be.
    Take,
    /// It takes in many messages, once for each idempotency key.
    Batch,
    /// It takes in much, which may take longer.
    Import,
}

fn text() -> RefOr<Schema> {
    RefOr::T(Schema::Object(ObjectBuilder::new().schema_type(Type::String).build()))
}

impl Route {
    fn new(method: Method, path: &'static str, need: Need, pace: Pace, about: &'static str) -> Self {
        Self {
            method,
            path,
            need,
            pace,
            about,
            query: Vec::new(),
            body: None,
            answers: Vec::new(),
            schemas: Vec::new(),
        }
    }

    pub(crate) fn get(path: &'static str, need: Need, about: &'static str) -> Self {
        Self::new(Method::GET, path, need, Pace::Read, about)
    }

    /// Takes something in.
    pub(crate) fn take(path: &'static str, need: Need, pace: Pace, about: &'static str) -> Self {
        Self::new(Method::POST, path, need, pace, about)
    }

    /// Changes something, as a body of JSON says.
    pub(crate) fn change<T: ToSchema>(
        method: Method,
        path: &'static str,
        need: Need,
        about: &'static str,
    ) -> Self {
        let mut route = Self::new(method, path, need, Pace::Change, about);
        let schema = route.refer::<T>();
        route.body = Some((vec!["application/json"], schema));
        route
    }

    /// One that takes a body of one of these types.
    pub(crate) fn body(mut self, types: &[&'static str]) -> Self {
        self.body = Some((types.to_vec(), text()));
        self
    }

    /// One that may have this parameter.
    pub(crate) fn query(mut self, name: &'static str, about: &'static str) -> Self {
        self.query.push((name, about, false));
        self
    }

    /// One that must have this parameter.
    pub(crate) fn required(mut self, name: &'static str, about: &'static str) -> Self {
        self.query.push((name, about, true));
        self
    }

    /// One that gives its list in pages.
    pub(crate) fn paged(self) -> Self {
        self.query("after", "`next` of the page before").query("limit", "How many at most; clamped")
    }

    /// One that answers with this.
    pub(crate) fn answers<T: ToSchema>(mut self, status: u16) -> Self {
        let schema = self.refer::<T>();
        self.answers.push((status, vec![("application/json", schema)]));
        self
    }

    /// One that can also answer with one of these a line.
    pub(crate) fn or_lines(mut self) -> Self {
        if let Some((_, contents)) = self.answers.last_mut() {
            contents.push((NDJSON, text()));
        }
        self
    }

    /// One that answers with something that is not JSON.
    pub(crate) fn answers_with(mut self, status: u16, media_type: &'static str) -> Self {
        self.answers.push((status, vec![(media_type, text())]));
        self
    }

    /// One whose answer is made of these, though it is not JSON itself.
    pub(crate) fn made_of<T: ToSchema>(mut self) -> Self {
        self.refer::<T>();
        self
    }

    /// One that answers with JSON of a form that is described elsewhere.
    pub(crate) fn answers_any_json(mut self, status: u16) -> Self {
        let any = ObjectBuilder::new().schema_type(SchemaType::AnyValue).build();
        self.answers.push((status, vec![("application/json", RefOr::T(Schema::Object(any)))]));
        self
    }

    /// One that answers with nothing but a status.
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
        let words = path.split('/').map(|word| word.trim_matches(|c| c == '{' || c == '}').replace('.', "-"));
        let path: Vec<String> = words.filter(|word| !word.is_empty()).collect();
        format!("{}-{}", self.method.as_str().to_lowercase(), path.join("-"))
    }
}

/// What grows into the document.
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

    /// Writes a route down.
    pub(crate) fn add(&mut self, route: Route) {
        let mut operation = OperationBuilder::new().operation_id(Some(route.operation_id()));
        operation = operation.summary(Some(route.about)).description(Some(words(route.need)));
        for name in route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
            let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path);
            operation = operation.parameter(parameter.required(Required::True).schema(Some(text())));
        }
        for (name, about, required) in &route.query {
            let required = if *required { Required::True } else { Required::False };
            let parameter =
                ParameterBuilder::new().name(*name).parameter_in(ParameterIn::Query).required(required);
            operation = operation.parameter(parameter.description(Some(*about)).schema(Some(text())));
        }
        if route.pace != Pace::Read {
            let about = match route.pace {
                Pace::Take => "The id of the message, if it has no other; the same id is not taken twice",
                _ => "A change that is sent again under the same key is made once",
            };
            let parameter = ParameterBuilder::new().name("Idempotency-Key").parameter_in(ParameterIn::Header);
            operation = operation.parameter(parameter.description(Some(about)).schema(Some(text())));
        }
        if let Some((types, schema)) = &route.body {
            let mut body = RequestBodyBuilder::new().required(Some(Required::True));
            for media_type in types {
                body = body.content(*media_type, ContentBuilder::new().schema(Some(schema.clone())).build());
            }
            operation = operation.request_body(Some(body.build()));
        }
        for (status, contents) in route.answers {
            let mut response = ResponseBuilder::new().description("As asked");
            for (media_type, schema) in contents {
                response = response.content(media_type, ContentBuilder::new().schema(Some(schema)).build());
            }
            operation = operation.response(status.to_string(), response.build());
        }
        let problem = RefOr::Ref(Ref::from_schema_name(Problem::name()));
        let problem = ContentBuilder::new().schema(Some(problem)).build();
        let problem = ResponseBuilder::new().description("A problem").content(Problem::MEDIA_TYPE, problem);
        operation = operation.response("default", problem.build());
        if route.need != Need::Open {
            operation = operation.security(SecurityRequirement::new("token", scopes(route.need)));
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

    /// The whole document.
    pub(crate) fn finish(self) -> OpenApi {
        let about = "Failed messages of event consumers: looking at them, caring for them, replaying them. Where no tokens \
                     are configured, nobody needs one and only this machine is served.";
        let info = InfoBuilder::new().title("Lazaret").version("1").description(Some(about));
        let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        let mut components = ComponentsBuilder::new().security_scheme("token", token);
        for (name, schema) in self.schemas {
            components = components.schema(name, schema);
        }
        OpenApiBuilder::new().info(info).paths(self.paths).components(Some(components.build())).build()
    }
}

fn scopes(need: Need) -> Vec<&'static str> {
    match need {
        Need::Open | Need::Known => Vec::new(),
        Need::Scope(scope) => vec![scope.as_str()],
        Need::OneOf(scopes) => scopes.iter().map(|scope| scope.as_str()).collect(),
    }
}

fn words(need: Need) -> String {
    match need {
        Need::Open => "Anybody may ask.".to_owned(),
        Need::Known => "Needs any valid token.".to_owned(),
        Need::Scope(scope) => format!("Needs the scope `{scope}`."),
        Need::OneOf(_) => {
            format!("Needs the scope {}, depending on what is asked.", scopes(need).join(" or "))
        }
    }
}
