//! The destination after a sign-in: a page of the console, never another site.

/// The maximum length of the path.
const MAX_BYTES: usize = 2048;
/// The default destination.
const START: &str = "/console/overview";

/// The path of a console page, with its query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Next(String);

impl Next {
    /// Accepts a path that the browser sent. Anything but a page of the console becomes the start page.
    pub(crate) fn of(path: Option<&str>) -> Self {
        Self(path.filter(|path| is_page(path)).unwrap_or(START).to_owned())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns `true` for the path of a page. Browsers ignore some characters in a URL, and read `\` as `/`,
/// so only plain characters are accepted.
fn is_page(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'\\';
    let in_console = path.strip_prefix("/console/").is_some_and(|rest| !rest.starts_with("login"));
    let route = path.split(['?', '#']).next().unwrap_or_default();
    let climbs = route.to_ascii_lowercase().replace("%2e", ".").split('/').any(|part| part == "..");
    in_console && !climbs && path.len() <= MAX_BYTES && path.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_leads_to_a_page_of_the_console_only() {
        for good in ["/console/overview", "/console/groups/g_1?q=a%20b&x=//y#t", "/console/letters/1..2"] {
            assert_eq!(Next::of(Some(good)).as_str(), good);
        }
        for bad in [
            "",
            "/",
            "/console",
            "//evil.example/console/",
            "https://evil.example/console/",
            "/\\evil.example",
            "/console\\..\\x",
            "/console/\\evil",
            "/console/../../evil",
            "/console/%2e%2E/v1/status",
            "/console/\nx",
            "/console/\tx",
            " /console/overview",
            "javascript:alert(1)//console/",
            "/v1/status",
            "/console/login",
            "/console/login?next=/console/login",
        ] {
            assert_eq!(Next::of(Some(bad)).as_str(), START, "{bad:?}");
        }
        assert_eq!(Next::of(Some(&format!("/console/{}", "x".repeat(MAX_BYTES)))).as_str(), START);
        assert_eq!(Next::of(None).as_str(), START);
    }
}
