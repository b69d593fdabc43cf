//! Renders bytes as a hex dump.

use std::fmt::Write;

use maud::{Markup, html};

/// The number of bytes in a row.
const ROW: usize = 16;

/// Renders bytes, the first of which has this offset in the payload.
pub(crate) fn render(bytes: &[u8], offset: u64) -> Markup {
    html! {
        div.hex role="img" aria-label={ (bytes.len()) " bytes as a hex dump" } {
            @for (index, row) in bytes.chunks(ROW).enumerate() {
                span.offset { (format!("{:08x}", offset + (index * ROW) as u64)) } "  " (digits(row)) "  " (characters(row)) "\n"
            }
        }
    }
}

fn digits(row: &[u8]) -> String {
    let mut written = String::with_capacity(ROW * 3 + 1);
    for index in 0..ROW {
        if index == ROW / 2 {
            written.push(' ');
        }
        // Writing to a string cannot fail.
        let _ = match row.get(index) {
            Some(byte) => write!(written, "{byte:02x} "),
            None => write!(written, "   "),
        };
    }
    written
}

fn characters(row: &[u8]) -> String {
    row.iter().map(|byte| if (b' '..=b'~').contains(byte) { char::from(*byte) } else { '·' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_offsets_digits_and_characters() {
        let shown = render(b"<script>alert(1)\xff\x00", 65536).into_string();
        assert!(shown.contains(">00010000<") && shown.contains(">00010010<"), "{shown}");
        assert!(shown.contains("3c 73 63 72 69 70 74 3e  61") && shown.contains("ff 00"), "{shown}");
        assert!(shown.contains("&lt;script&gt;alert(1)") && shown.contains("··"), "{shown}");
    }
}
