//! Lazaret's web console. Its pages are rendered on the server, with their own styles, scripts and
//! charts, all served from the binary.
//!
//! The console is a client of the HTTP API, like the command line, but runs in the process of the
//! server. A page calls the API with the extensions of its own request, in which the server keeps the
//! authenticated caller. Every right, limit, audit entry and hidden payload of the API therefore also
//! applies to pages. The console itself decides none of them.
//!
//! ```text
//!   browser ──► server: admission, authentication ──► page ──► api: authorization, limits ──► route of the API ──► store
//!                                                      │
//!                                                      └──► maud: escaped HTML
//! ```
//!
//! Every page is a plain URL. Reading, planning and starting an operation work without scripts. Scripts
//! only add comfort: live updates, keys, and a command line that follows the form.
//!
//! Everything from outside is treated as hostile: payloads, headers, error texts, keys and names. It
//! reaches a page as text of a template, which escapes it, and never as markup. Characters that hide or
//! reorder text are made visible.
//!
//! # Modules
//!
//! - `routes`: the table of all pages.
//! - `login`: sign-in with a token or a provider.
//! - `visit`, `api`, `problem`: one request of a page, its calls of the API, and the display of failed calls.
//! - `short_id`: finds groups and letters by a prefix of their ids. `starts`: the start times of a
//!   consumer's instances.
//! - `layout`, `text`, `time`, `badge`, `icon`, `chart`, `form`, `query`, `links`, `cli_line`: the frame
//!   of a page and its parts.
//! - `overview`, `groups`, `group`, `letters`, `letter`, `plan`, `operations`, `operation`, `pause`,
//!   `admin`: the screens and their forms.
//! - `payload`, `diff`: payloads as a tree, as text and as bytes, and edits as differences.
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
