//! The keys of the web console.

use super::top::SCOPES;
use super::types::{Format, Key, Kind, Section};

/// The console.
pub(crate) static CONSOLE: Section = Section {
    name: "console",
    doc: "The web console: sign-in, and links to other systems.",
    keys: &[
        Key::new("session", Kind::Section(&SESSION), "Duration of sessions.").or("{}"),
        Key::new(
            "oidc",
            Kind::Section(&OIDC),
            "Sign-in with an OpenID Connect provider, beside tokens. Requires `auth`.",
        )
        .absent("tokens only"),
        Key::new("proxy", Kind::Section(&PROXY), "Reverse proxy in front of the console.").absent("none"),
        Key::new(
            "trace-url",
            Kind::Text(Format::Url),
            "URL of a trace in the system that shows traces, for the page of a letter. `{trace-id}` stands for the id of the trace, from the \
             header `traceparent` of the message; without it, the id is added at the end.",
        )
        .absent("no link")
        .example("https://jaeger.example.com/trace/{trace-id}"),
    ],
};

static SESSION: Section = Section {
    name: "session",
    doc: "Duration of sessions.",
    keys: &[
        Key::new("idle", Kind::Duration { zero: false }, "Time without use after which a session ends.")
            .or("1h"),
        Key::new("lifetime", Kind::Duration { zero: false }, "Time after which a session ends in any case.")
            .or("12h"),
    ],
};

static OIDC: Section = Section {
    name: "oidc",
    doc: "An OpenID Connect provider: authorization code flow with PKCE.",
    keys: &[
        Key::new(
            "issuer",
            Kind::Text(Format::Url),
            "Issuer URL of the provider, whose `/.well-known/openid-configuration` is read at sign-ins. `https`, except on this \
             machine.",
        )
        .required()
        .example("https://login.example.com/realms/main"),
        Key::new("client-id", Kind::Text(Format::Line), "Client id at the provider.").required().example("lazaret"),
        Key::new(
            "client-secret",
            Kind::Text(Format::Line),
            "Client secret. Read it from the environment: `${NAME}`.",
        )
        .absent("a public client, or `client-secret-file`")
        .secret()
        .example("${OIDC_SECRET}"),
        Key::new("client-secret-file", Kind::Text(Format::Path), "File with the client secret, read at the start.")
            .absent("none")
            .example("/run/secrets/oidc"),
        Key::new("scopes", Kind::List { of: &Kind::Text(Format::Line), min: 0 }, "Scopes to request, beside `openid`.")
            .or("[profile, email]"),
        Key::new(
            "person-claim",
            Kind::Text(Format::Line),
            "Claim of the ID token with the name of the person, for the audit and for approvals. Without it nobody is signed in; an `email` must \
             come with `email_verified: true`.",
        )
        .or("email"),
        Key::new("groups-claim", Kind::Text(Format::Line), "Claim of the ID token with the groups of the person, a list.")
            .or("groups"),
        Key::new(
            "roles",
            Kind::List { of: &Kind::Section(&ROLE), min: 1 },
            "Rights of groups. The first role of one of a person's groups applies; others have no access.",
        )
        .required(),
    ],
};

static PROXY: Section = Section {
    name: "proxy",
    doc: "A reverse proxy whose headers are trusted.",
    keys: &[
        Key::new(
            "trusted",
            Kind::List { of: &Kind::Text(Format::Network), min: 0 },
            "Networks of the proxy's addresses. `X-Forwarded-Proto` and `X-Forwarded-For` of these peers are used, and the headers below. \
             Clients of `socket` are always trusted.",
        )
        .required()
        .example("10.1.0.0/16"),
        Key::new(
            "user-header",
            Kind::Text(Format::HeaderName),
            "Header with the name of the person whom the proxy has authenticated. The proxy must remove it from requests of clients. Requires \
             `auth`.",
        )
        .absent("the proxy authenticates nobody")
        .example("X-Auth-Request-Email"),
        Key::new("groups-header", Kind::Text(Format::HeaderName), "Header with the groups of the person, separated by commas.")
            .or("X-Auth-Request-Groups"),
        Key::new(
            "roles",
            Kind::List { of: &Kind::Section(&ROLE), min: 0 },
            "Rights of groups, for `user-header`. The first role of one of a person's groups applies; others have no access.",
        )
        .or("[]"),
    ],
};

static ROLE: Section = Section {
    name: "role",
    doc: "The rights of a group.",
    keys: &[
        Key::new("group", Kind::Text(Format::Line), "Name of the group.")
            .required()
            .example("payments-oncall"),
        Key::new("scopes", Kind::List { of: &Kind::Enum(SCOPES), min: 1 }, "Permissions of its members.")
            .required(),
        Key::new(
            "consumers",
            Kind::List { of: &Kind::Text(Format::Name), min: 1 },
            "Consumers whose letters, inboxes and operations its members may use.",
        )
        .absent("all consumers")
        .example("payments"),
    ],
};
