//! The pages of the book, taken apart: headings, links and blocks of code.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The top of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// One page.
pub(crate) struct Page {
    /// Its path below `docs`, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A block of code.
#[derive(Debug)]
pub(crate) struct Block {
    /// The line on which it begins, from 1.
    pub(crate) line: usize,
    /// What stands behind the fence: `sh`, `rust,no_run`.
    pub(crate) info: String,
    pub(crate) text: String,
    /// The remark that stands directly above it and is not shown.
    pub(crate) remark: Option<String>,
}

impl Block {
    /// The language alone.
    pub(crate) fn language(&self) -> &str {
        self.info.split([',', ' ']).next().unwrap_or_default()
    }
}

/// Every page below `docs`, and those that people read beside the code.
pub(crate) fn all_pages() -> Vec<Page> {
    // The changelog is left out: it may speak of commands that are no more.
    let beside = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "deploy/README.md"];
    let beside = beside.map(|path| Page {
        path: format!("../{path}"),
        text: fs::read_to_string(root().join(path)).unwrap(),
    });
    pages().into_iter().chain(beside).collect()
}

/// Every page below `docs`, by path.
pub(crate) fn pages() -> Vec<Page> {
    let docs = root().join("docs");
    let mut paths = Vec::new();
    collect(&docs, &mut paths);
    paths.sort();
    let page = |path: PathBuf| Page {
        path: path.strip_prefix(&docs).unwrap().to_string_lossy().replace('\\', "/"),
        text: fs::read_to_string(&path).unwrap(),
    };
    paths.into_iter().map(page).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, paths);
        } else if path.extension().is_some_and(|end| end == "md") {
            paths.push(path);
        }
    }
}

impl Page {
    pub(crate) fn named(path: &str) -> Self {
        let text = fs::read_to_string(root().join("docs").join(path)).unwrap();
        Self { path: path.to_owned(), text }
    }

    /// The blocks of code, in order.
    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut open = None;
        let mut above: Option<String> = None;
        for (number, line) in (1..).zip(self.text.lines()) {
            match (&mut open, line.trim_start().strip_prefix("```")) {
                (None, Some(info)) => {
                    let remark = above.take();
                    open = Some(Block { line: number, info: info.to_owned(), text: String::new(), remark });
                }
                (Some(_), Some("")) => blocks.extend(open.take()),
                (Some(block), _) => block.text += &format!("{line}\n"),
                (None, None) if !line.trim().is_empty() => {
                    let inner = line.trim().strip_prefix("<!--").and_then(|rest| rest.strip_suffix("-->"));
                    above = inner.map(|text| text.trim().to_owned());
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block of code does not end", self.path);
        blocks
    }

    /// The text without blocks of code, line by line with numbers.
    pub(crate) fn prose(&self) -> Vec<(usize, &str)> {
        let mut inside = false;
        let mut lines = Vec::new();
        for (number, line) in (1..).zip(self.text.lines()) {
            if line.trim_start().starts_with("```") {
                inside = !inside;
            } else if !inside {
                lines.push((number, line));
            }
        }
        lines
    }

    /// What links of this page can point to, as mdBook and others make it of headings.
    pub(crate) fn anchors(&self) -> Vec<String> {
        let mut seen: HashMap<String, u32> = HashMap::new();
        let mut anchors = Vec::new();
        for (_, line) in self.prose() {
            let Some(heading) = line.strip_prefix('#').map(|rest| rest.trim_start_matches('#')) else {
                continue;
            };
            let name = slug(heading);
            let times = seen.entry(name.clone()).or_default();
            anchors.push(if *times == 0 { name } else { format!("{name}-{times}") });
            *times += 1;
        }
        anchors
    }

    /// Where links and images of this page lead, with their line. Code is left out.
    pub(crate) fn links(&self) -> Vec<(usize, String)> {
        let mut links = Vec::new();
        for (number, line) in self.prose() {
            let mut rest = without_code(line);
            while let Some(at) = rest.find("](") {
                let after = rest.split_off(at + 2);
                let end = after.find(')').unwrap_or(after.len());
                links.push((number, after[..end].to_owned()));
                rest = after[end..].to_owned();
            }
        }
        links
    }

    /// Pieces of code in the text, with the line on which they begin. A piece may go on on the next line.
    pub(crate) fn inline_code(&self) -> Vec<(usize, String)> {
        let mut pieces = Vec::new();
        let mut open: Option<(usize, String)> = None;
        for (number, line) in self.prose() {
            // A paragraph that ends ends its pieces.
            if line.trim().is_empty() {
                open = None;
            }
            for (index, piece) in line.split('`').enumerate() {
                match open.take() {
                    // Behind a mark it begins or ends, at the beginning of a line it goes on.
                    Some((begun, text)) if index == 0 => {
                        open = Some((begun, format!("{text} {}", piece.trim())));
                    }
                    Some(whole) => pieces.push(whole),
                    None if index > 0 => open = Some((number, piece.to_owned())),
                    None => {}
                }
            }
        }
        pieces
    }
}

/// A heading as the name of its place.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c.to_lowercase().to_string()),
        c if c.is_whitespace() => Some("-".to_owned()),
        _ => None,
    });
    kept.collect()
}

fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

#[test]
fn a_page_is_taken_apart() {
    let text = "# A `b` c!\n\n## Twice\n## Twice\n[x](y.md#z) `[no](no.md)` ![i](j.svg)\n<!-- look -->\n```sh\n# no heading\n```\n";
    let page = Page { path: "a.md".to_owned(), text: text.to_owned() };
    assert_eq!(page.anchors(), ["a-b-c", "twice", "twice-1"]);
    assert_eq!(page.links(), [(5, "y.md#z".to_owned()), (5, "j.svg".to_owned())]);
    let [block] = &page.blocks()[..] else { panic!() };
    assert_eq!(
        (block.language(), &*block.text, block.remark.as_deref()),
        ("sh", "# no heading\n", Some("look"))
    );
    assert_eq!(page.inline_code(), [(1, "b".to_owned()), (5, "[no](no.md)".to_owned())]);
    let page = Page { path: String::new(), text: "a `b\n  c` d `e`, `f\n\ng `h`\n".to_owned() };
    let pieces: Vec<String> = page.inline_code().into_iter().map(|(_, piece)| piece).collect();
    assert_eq!(pieces, ["b c", "e", "h"]);
}
