//! The documentation: generated pages, checks of all pages, and the book in HTML.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::process::{Cargo, workspace_root};
use crate::services;

/// The variable that makes tests regenerate pages.
const UPDATE: &str = "LAZARET_UPDATE_DOCS";
/// The version of mdBook.
const MDBOOK: &str = "0.5.4";

/// Returns the tests that regenerate pages.
fn generators() -> [Cargo; 2] {
    let config = Cargo::new("test -p lazaret-config --test it the_reference_in_the_documentation");
    let cli = Cargo::new("test -p lazaret-cli --test docs generated::");
    [config, cli].map(|call| call.with_variable(UPDATE, "1"))
}

/// Returns the checks of all pages.
fn checks() -> [Cargo; 2] {
    [Cargo::new("test -p lazaret-cli --test docs"), guides()]
}

/// Compiles the Rust code of the guides, which needs every feature.
fn guides() -> Cargo {
    Cargo::new("test -p lazaret --doc --features full")
}

/// Regenerates pages and checks all of them.
pub(crate) fn write() -> Result<(), String> {
    enter_workspace()?;
    for call in generators().iter().chain(&checks()) {
        call.run()?;
    }
    println!("documentation is up to date; review changes with `git diff docs`");
    Ok(())
}

/// Builds the book in HTML and prints its path.
pub(crate) fn build() -> Result<(), String> {
    let root = enter_workspace()?;
    let target = services::target()?;
    let program = mdbook(&target)?;
    let book = target.join("book");
    // Pages are placed below `docs` as in the repository, so that links to its files resolve to copies beside it.
    let html = book.join("docs");
    let built = Command::new(&program).arg("build").arg("docs").arg("--dest-dir").arg(&html).status();
    match built {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("mdbook failed with {status}")),
        Err(error) => return Err(format!("failed to start {}: {error}", program.display())),
    }
    for linked in linked_files(&root)? {
        copy(&root.join(&linked), &book.join(&linked))
            .map_err(|error| format!("{}: {error}", linked.display()))?;
    }
    println!("book built: {}", html.join("index.html").display());
    Ok(())
}

fn enter_workspace() -> Result<PathBuf, String> {
    let root = workspace_root()?;
    std::env::set_current_dir(&root).map_err(|error| format!("failed to enter the workspace: {error}"))?;
    Ok(root)
}

/// Returns the path of mdBook, installed below the target folder if it is missing.
fn mdbook(target: &Path) -> Result<PathBuf, String> {
    let tools = target.join("tools");
    let program = tools.join("bin").join(format!("mdbook{}", std::env::consts::EXE_SUFFIX));
    if !program.exists() {
        let root = tools.display().to_string();
        let install =
            Cargo::new("install mdbook --locked").with_arguments(["--version".to_owned(), MDBOOK.to_owned()]);
        install.with_arguments(["--root".to_owned(), root]).run()?;
    }
    Ok(program)
}

/// Returns the files and folders outside of `docs` that pages link to, relative to the repository.
fn linked_files(root: &Path) -> Result<BTreeSet<PathBuf>, String> {
    let mut linked = BTreeSet::new();
    for folder in ["docs", "docs/decisions"] {
        let wrong = |error| format!("failed to read {folder}: {error}");
        for entry in fs::read_dir(root.join(folder)).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            if path.extension().is_some_and(|end| end == "md") {
                let text = fs::read_to_string(&path).map_err(wrong)?;
                linked.extend(links_out(folder, &text));
            }
        }
    }
    Ok(linked)
}

/// Returns the link targets of a page in this folder that are outside of `docs`.
fn links_out(folder: &str, text: &str) -> Vec<PathBuf> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let relative = targets.filter(|target| target.starts_with("../"));
    let resolved = relative.map(|target| normal(&Path::new(folder).join(target)));
    resolved.filter(|path| !path.starts_with("docs")).collect()
}

/// Resolves `..` in a path.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = normal.pop(),
            part => normal.push(part),
        }
    }
    normal
}

/// Copies a file, or a folder with an index page.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    if from.is_file() {
        fs::create_dir_all(to.parent().unwrap_or(to))?;
        return fs::copy(from, to).map(|_| ());
    }
    fs::create_dir_all(to)?;
    let mut names = Vec::new();
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    fs::write(to.join("index.html"), listing(&names))
}

/// Returns a page with links to these files. The names come from the repository and need no escaping.
fn listing(names: &[String]) -> String {
    let links: String =
        names.iter().map(|name| format!("<li><a href=\"{name}\">{name}</a></li>\n")).collect();
    format!("<!doctype html>\n<meta charset=\"utf-8\">\n<title>Files</title>\n<ul>\n{links}</ul>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_book_are_found() {
        let text = "[a](../crates/x/y.json) [b](kafka.md) [c](../deploy#top) ![d](states.svg)";
        assert_eq!(links_out("docs", text), [Path::new("crates/x/y.json"), Path::new("deploy")]);
        assert_eq!(links_out("docs/decisions", "[a](../kafka.md) [b](../../bench)"), [Path::new("bench")]);
    }

    #[test]
    fn generators_write_and_checks_do_not() {
        assert!(
            generators()
                .iter()
                .all(|call| call.to_string().starts_with("LAZARET_UPDATE_DOCS=\"1\" cargo test"))
        );
        assert!(checks().iter().all(|call| call.to_string().starts_with("cargo test")));
    }

    #[test]
    fn a_folder_is_copied_with_an_index() {
        let folder = std::env::temp_dir().join(format!("lazaret-book-{}", std::process::id()));
        fs::create_dir_all(folder.join("from/inner")).unwrap();
        fs::write(folder.join("from/inner/a.txt"), "a").unwrap();
        copy(&folder.join("from"), &folder.join("to")).unwrap();
        let list = fs::read_to_string(folder.join("to/inner/index.html"));
        let copied = fs::read_to_string(folder.join("to/inner/a.txt"));
        fs::remove_dir_all(&folder).unwrap();
        assert!(list.unwrap().contains("<a href=\"a.txt\">a.txt</a>"));
        assert_eq!(copied.unwrap(), "a");
    }
}
