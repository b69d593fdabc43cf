//! Icons drawn with lines. They repeat the meaning of the word next to them.

use maud::{Markup, html};

/// Renders the icon with this name, or a dot for an unknown name.
pub(crate) fn icon(name: &str) -> Markup {
    let lines: &[&str] = match name {
        "brand" => &["M3 20h18", "M5 20V9l7-5 7 5v11", "M9 20v-6h6v6", "M12 4V2"],
        "overview" => &["M4 13h6V4H4z", "M14 9h6V4h-6z", "M14 20h6v-7h-6z", "M4 20h6v-3H4z"],
        "groups" => &["M4 6h16", "M4 12h16", "M4 18h10"],
        "letter" => &["M3 6h18v12H3z", "M3 7l9 7 9-7"],
        "operation" => &["M5 12a7 7 0 1 1 2 5", "M5 20v-4h4", "M12 8v4l3 2"],
        "admin" => &["M12 3l8 3v6c0 5-3.500 8-8 9-4.500-1-8-4-8-9V6z", "M9 12l2 2 4-4"],
        "search" => &["M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14", "M20 20l-4-4"],
        "person" => &["M12 4a4 4 0 1 0 0 8 4 4 0 0 0 0-8", "M4 21c0-4 4-6 8-6s8 2 8 6"],
        "ok" => &["M5 13l4 4L19 7"],
        "cross" => &["M6 6l12 12", "M18 6L6 18"],
        "retry" => &["M4 12a8 8 0 1 1 2.500 5.800", "M4 20v-5h5"],
        "pause" => &["M8 5v14", "M16 5v14"],
        "play" => &["M7 5l11 7-11 7z"],
        "wait" => &["M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16", "M12 8v4l3 2"],
        "warn" => &["M12 4l9 16H3z", "M12 10v4", "M12 17v.500"],
        "park" => &["M6 4h12v16H6z", "M10 16V8h3a2.500 2.500 0 0 1 0 5h-3"],
        "quarantine" => &["M12 3l8 3v6c0 5-3.500 8-8 9-4.500-1-8-4-8-9V6z", "M12 8v5", "M12 16v.500"],
        "evict" => &["M4 7h16", "M9 7V4h6v3", "M6 7l1 13h10l1-13"],
        "skip" => &["M5 5l8 7-8 7z", "M18 5v14"],
        "clock" => &["M6 3h12", "M6 21h12", "M7 3c0 5 5 6 5 9s-5 4-5 9", "M17 3c0 5-5 6-5 9s5 4 5 9"],
        "next" => &["M9 5l7 7-7 7"],
        "back" => &["M15 5l-7 7 7 7"],
        "eye" => &["M2 12s4-7 10-7 10 7 10 7-4 7-10 7-10-7-10-7z", "M12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6"],
        "download" => &["M12 4v11", "M7 11l5 5 5-5", "M4 20h16"],
        "elsewhere" => &["M4 12h12", "M11 6l6 6-6 6", "M20 4v16"],
        _ => &["M12 11v2"],
    };
    html! {
        svg.icon viewBox="0 0 24 24" width="16" height="16" fill="none" stroke="currentColor" stroke-width="2"
            stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" focusable="false" {
            @for line in lines { path d=(line) {} }
        }
    }
}
