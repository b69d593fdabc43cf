//! Serves styles and scripts from the binary. Their names contain a hash of their content, so browsers
//! cache them permanently.

use std::sync::OnceLock;

use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

/// A file of the console.
pub(crate) struct Asset {
    name: &'static str,
    extension: &'static str,
    media_type: &'static str,
    content: &'static str,
    hash: OnceLock<String>,
}

macro_rules! assets {
    ($($constant:ident = $name:literal . $extension:literal, $media_type:literal;)+) => {
        $(pub(crate) static $constant: Asset = Asset {
            name: $name,
            extension: $extension,
            media_type: $media_type,
            content: include_str!(concat!("../assets/", $name, ".", $extension)),
            hash: OnceLock::new(),
        };)+

        static ALL: &[&Asset] = &[$(&$constant),+];
    };
}

assets! {
    STYLE = "style"."css", "text/css; charset=utf-8";
    THEME = "theme"."js", "text/javascript; charset=utf-8";
    LIVE = "live"."js", "text/javascript; charset=utf-8";
    KEYS = "keys"."js", "text/javascript; charset=utf-8";
    PAGE = "page"."js", "text/javascript; charset=utf-8";
    ICON = "icon"."svg", "image/svg+xml";
}

impl Asset {
    /// Returns the name with the hash of the content.
    fn file(&self) -> String {
        let hash = self.hash.get_or_init(|| {
            let digest = Sha256::digest(self.content);
            digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
        });
        format!("{}.{hash}.{}", self.name, self.extension)
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> String {
        format!("/console/assets/{}", self.file())
    }
}

/// Serves a file. Files are public, because they contain only the program.
pub(crate) async fn serve(Path(file): Path<String>) -> Response {
    let Some(asset) = ALL.iter().find(|asset| asset.file() == file) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let mut response = asset.content.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.media_type));
    let lasting = HeaderValue::from_static("public, max-age=31536000, immutable");
    headers.insert(header::CACHE_CONTROL, lasting);
    response
}
