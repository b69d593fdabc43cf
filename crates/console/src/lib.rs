//! Lazaret's web console: pages rendered on the server, with its own styles, scripts and charts, all served from the binary.
//!
//! The console is a client of the HTTP API, like the command line, except that it runs in the process of the server. A page calls the
//! API with the extensions of its own request, in which the server keeps the authenticated caller. So every right, limit, audit entry
//! and hidden payload of the API holds for pages, and nothing here decides any of it.
//!
//! ```text
//!   browser ──► server: admission, authentication ──► page ──► api: authorization, limits ──► route of the API ──► store
//!                                                      │
//!                                                      └──► maud: escaped HTML
//! ```
//!
//! Every page is a plain URL, and works without scripts: reading, planning and starting an operation. Scripts only add comfort: live
//! refresh, keys, a command line that follows the form.
//!
//! Everything from outside is hostile: payloads, headers, error texts, keys and names. It reaches a page as text of a template, which
//! escapes it, and never as markup; characters that hide or turn text are made visible.
//!
//! # Modules
//!
//! - `routes`: the table of all pages.
//! - `login`: sign-in with a token or a provider.
//! - `visit`, `api`, `problem`: one request of a page, its calls of the API, and what it shows when one fails.
//! - `short_id`: groups and letters by a prefix of their ids. `starts`: when the instances of a consumer started.
//! - `layout`, `text`, `time`, `badge`, `icon`, `chart`, `form`, `query`, `links`, `cli_line`: the frame of a page and its parts.
//! - `overview`, `groups`, `group`, `letters`, `letter`, `plan`, `operations`, `operation`, `pause`, `admin`: the
//!   screens and their forms.
//! - `payload`, `diff`: payloads as a tree, as text and as bytes; edits as differences.
//! - `events`: live updates. `assets`, `headers`: files of the console, and the headers of its responses.

mod admin;
mod api;
mod assets;
mod badge;
mod chart;
mod cli_line;
mod diff;
mod events;
mod form;
mod group;
mod groups;
mod headers;
mod icon;
mod layout;
mod letter;
mod letters;
mod links;
mod login;
mod operation;
mod operations;
mod overview;
mod pause;
mod payload;
mod plan;
mod problem;
mod query;
mod routes;
mod short_id;
mod starts;
mod text;
mod time;
mod visit;

pub use login::{InvalidOidc, OidcOptions};
pub use problem::problem_page;
pub use routes::{Kind, Options, PageRoute, pages, router, routes};
