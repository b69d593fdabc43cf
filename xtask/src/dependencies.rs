//! Checks dependencies: allowed licences, no banned crates, and a core without C code and without a runtime.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::licence;
use crate::process::Cargo;

/// Crates that must not be in the graph, and why.
const BANNED: [(&str, &str); 5] = [
    ("aws-lc-rs", "TLS is rustls with ring; two providers make it refuse at run time"),
    ("chrono", "use jiff for time"),
    ("native-tls", "TLS is rustls with ring"),
    ("openssl-sys", "TLS is rustls with ring"),
    ("serde_yaml", "it is no longer maintained"),
];
/// The only packages that may depend on a banned crate: librdkafka supports no TLS but OpenSSL's, and the times in the interface of the
/// OpenID Connect client are chrono's.
const EXCEPTIONS: [(&str, &[&str]); 2] =
    [("openssl-sys", &["rdkafka-sys"]), ("chrono", &["oauth2", "openidconnect", "serde_with"])];
/// The crate with the strictest rules.
const CORE: &str = "lazaret-core";

/// A package of cargo's metadata.
#[derive(Debug)]
struct Package {
    name: String,
    version: String,
    licence: Option<String>,
    /// The native library that it links to.
    links: Option<String>,
    is_ours: bool,
    /// The names of its enabled run-time dependencies.
    needs: Vec<String>,
}

/// A package of the core's dependency tree, with the features that the core alone enables.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    name: String,
    version: String,
    features: Vec<String>,
}

/// Checks the whole dependency graph. The error lists every violation.
pub(crate) fn check() -> Result<(), String> {
    let metadata = Cargo::new("metadata --format-version 1 --locked").output()?;
    let packages = read_packages(&metadata)?;
    // The metadata unifies features across the workspace; the tree shows what the core alone enables.
    let tree = Cargo::new("tree --locked --edges normal --prefix none")
        .with_arguments(["--package", CORE, "--format", "{p}|{f}"].map(str::to_owned))
        .output()?;
    let core = read_tree(&tree);
    let mut wrong = licences(&packages);
    wrong.extend(banned(&packages));
    wrong.extend(core_rules(&packages, &core));
    if !wrong.is_empty() {
        return Err(format!("forbidden dependencies:\n  {}", wrong.join("\n  ")));
    }
    let foreign = packages.iter().filter(|package| !package.is_ours).count();
    println!("{foreign} packages, {} of them below {CORE}: all allowed", core.len().saturating_sub(1));
    Ok(())
}

fn read_packages(metadata: &str) -> Result<Vec<Package>, String> {
    let metadata: Value = serde_json::from_str(metadata)
        .map_err(|error| format!("failed to read cargo's metadata: {error}"))?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let ours = list(&metadata["workspace_members"]);
    let described = list(&metadata["packages"]);
    let name_of = |id: &Value| described.iter().find(|p| p["id"] == *id).and_then(|p| text(&p["name"]));
    let nodes = list(&metadata["resolve"]["nodes"]);
    let needs_of = |id: &Value| -> Vec<String> {
        let node = nodes.iter().find(|node| node["id"] == *id);
        let needs = node.map(|node| list(&node["deps"])).unwrap_or_default();
        let at_run_time = |need: &&Value| list(&need["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
        needs.iter().filter(at_run_time).filter_map(|need| name_of(&need["pkg"])).collect()
    };
    let packages: Vec<Package> = described
        .iter()
        .map(|package| Package {
            name: text(&package["name"]).unwrap_or_default(),
            version: text(&package["version"]).unwrap_or_default(),
            licence: text(&package["license"]),
            links: text(&package["links"]),
            is_ours: ours.contains(&package["id"]),
            needs: needs_of(&package["id"]),
        })
        .collect();
    if packages.is_empty() { Err("cargo's metadata has no packages".to_owned()) } else { Ok(packages) }
}

/// Parses lines such as `tokio v1.54.1|default,sync`. Text after a space in the version or the features is a note.
fn read_tree(tree: &str) -> Vec<Node> {
    let nodes = tree.lines().filter_map(|line| {
        let (package, features) = line.split_once('|')?;
        let mut words = package.split_whitespace();
        let (name, version) = (words.next()?.to_owned(), words.next()?.trim_start_matches('v').to_owned());
        let features = features.split_whitespace().next().unwrap_or_default();
        let features = features.split(',').filter(|name| !name.is_empty() && !name.starts_with('('));
        Some(((name, version), features.map(str::to_owned).collect()))
    });
    let unique: BTreeMap<(String, String), Vec<String>> = nodes.collect();
    unique.into_iter().map(|((name, version), features)| Node { name, version, features }).collect()
}

fn licences(packages: &[Package]) -> Vec<String> {
    let foreign = packages.iter().filter(|package| !package.is_ours);
    let wrong = foreign.filter_map(|Package { name, version, licence, .. }| {
        let Some(licence) = licence else { return Some(format!("{name} {version} has no licence")) };
        match licence::is_allowed(licence) {
            Ok(true) => None,
            Ok(false) => Some(format!("{name} {version} has the licence {licence}, which is not allowed")),
            Err(why) => Some(format!("{name} {version} has an invalid licence expression: {why}")),
        }
    });
    wrong.collect()
}

fn banned(packages: &[Package]) -> Vec<String> {
    let wrong = packages.iter().filter_map(|Package { name, version, .. }| {
        let (_, why) = BANNED.iter().find(|(banned, _)| banned == name)?;
        let users: Vec<&str> =
            packages.iter().filter(|user| user.needs.contains(name)).map(|user| user.name.as_str()).collect();
        let exception = EXCEPTIONS.iter().find(|(banned, _)| banned == name).map(|(_, users)| *users);
        let is_allowed =
            |allowed: &[&str]| !users.is_empty() && users.iter().all(|user| allowed.contains(user));
        if exception.is_some_and(is_allowed) {
            return None;
        }
        Some(format!("{name} {version} is banned: {why}"))
    });
    wrong.collect()
}

/// Checks that the core has no C code and no runtime. It may use tokio's primitives through tokio-util, never the runtime.
fn core_rules(packages: &[Package], core: &[Node]) -> Vec<String> {
    let mut wrong = Vec::new();
    let known = |node: &Node| packages.iter().find(|p| p.name == node.name && p.version == node.version);
    for node in core {
        let Node { name, version, features } = node;
        match known(node) {
            None => wrong.push(format!("{name} {version} below {CORE} is missing in cargo's metadata")),
            Some(Package { links: Some(library), .. }) => {
                wrong.push(format!("{name} {version} below {CORE} links {library}"));
            }
            Some(_) => {}
        }
        if name == "tokio" && features.iter().any(|feature| feature.starts_with("rt")) {
            wrong.push(format!("{name} {version} below {CORE} enables its runtime"));
        }
    }
    match packages.iter().find(|package| package.is_ours && package.name == CORE) {
        None => wrong.push(format!("package {CORE} not found")),
        Some(package) if package.needs.iter().any(|name| name == "tokio") => {
            wrong.push(format!("{CORE} depends on tokio"));
        }
        Some(_) => {}
    }
    if !core.iter().any(|node| node.name == CORE) {
        wrong.push(format!("the dependency tree of {CORE} is empty"));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, licence: Option<&str>) -> Package {
        Package {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            licence: licence.map(str::to_owned),
            links: None,
            is_ours: false,
            needs: Vec::new(),
        }
    }

    fn core(needs: &[&str]) -> Package {
        let needs = needs.iter().map(|&name| name.to_owned()).collect();
        Package { is_ours: true, needs, ..package(CORE, Some("Apache-2.0")) }
    }

    #[test]
    fn every_foreign_package_needs_an_allowed_licence() {
        let ours = Package { is_ours: true, ..package("ours", None) };
        let packages =
            [package("good", Some("MIT")), package("bad", Some("AGPL-3.0")), package("mute", None), ours];
        let wrong = licences(&packages);
        let expected =
            ["bad 1.0.0 has the licence AGPL-3.0, which is not allowed", "mute 1.0.0 has no licence"];
        assert_eq!(wrong, expected);
    }

    #[test]
    fn a_banned_crate_is_named_with_the_reason() {
        let wrong = banned(&[package("jiff", Some("MIT")), package("chrono", Some("MIT"))]);
        assert_eq!(wrong, ["chrono 1.0.0 is banned: use jiff for time"]);
    }

    #[test]
    fn openssl_comes_with_the_kafka_client_and_with_nothing_else() {
        let openssl = || package("openssl-sys", Some("MIT"));
        let user = |name| Package { needs: vec!["openssl-sys".to_owned()], ..package(name, Some("MIT")) };
        assert!(banned(&[openssl(), user("rdkafka-sys")]).is_empty());
        let wrong = banned(&[openssl(), user("rdkafka-sys"), user("openssl")]);
        assert_eq!(wrong, ["openssl-sys 1.0.0 is banned: TLS is rustls with ring"]);
    }

    #[test]
    fn the_core_may_not_link_c_nor_bring_a_runtime() {
        let c = Package { links: Some("z".to_owned()), ..package("libz-sys", Some("MIT")) };
        let packages = [core(&["tokio"]), package("tokio", Some("MIT")), c];
        let tree = read_tree("lazaret-core v1.0.0 (here)|\nlibz-sys v1.0.0|\ntokio v1.0.0|default,rt,sync\n");
        let expected = [
            "libz-sys 1.0.0 below lazaret-core links z",
            "tokio 1.0.0 below lazaret-core enables its runtime",
            "lazaret-core depends on tokio",
        ];
        assert_eq!(core_rules(&packages, &tree), expected);
    }

    #[test]
    fn a_tree_that_cannot_be_read_is_not_a_tree_without_faults() {
        assert_eq!(
            core_rules(&[core(&[])], &read_tree("")),
            ["the dependency tree of lazaret-core is empty"]
        );
        assert_eq!(core_rules(&[], &[]).len(), 2);
    }

    #[test]
    fn the_tree_is_read_without_repetitions_and_remarks() {
        let tree = "bytes v1.12.1|default,std\nbytes v1.12.1|default,std (*)\nserde_derive v1.0.2 (proc-macro)| (*)\n\n";
        let node = |name: &str, version: &str, features: &[&str]| Node {
            name: name.to_owned(),
            version: version.to_owned(),
            features: features.iter().map(|&feature| feature.to_owned()).collect(),
        };
        let expected = [node("bytes", "1.12.1", &["default", "std"]), node("serde_derive", "1.0.2", &[])];
        assert_eq!(read_tree(tree), expected);
    }

    #[test]
    fn the_metadata_is_read() {
        let metadata = r#"{
            "workspace_members": ["a"],
            "packages": [
                {"id": "a", "name": "ours", "version": "0.1.0", "license": null, "links": null},
                {"id": "b", "name": "bytes", "version": "1.0.0", "license": "MIT", "links": "c"},
                {"id": "c", "name": "proptest", "version": "1.0.0", "license": "MIT", "links": null}
            ],
            "resolve": {"nodes": [
                {"id": "a", "deps": [
                    {"pkg": "b", "dep_kinds": [{"kind": "dev"}, {"kind": null}]},
                    {"pkg": "c", "dep_kinds": [{"kind": "dev"}]}]},
                {"id": "b", "deps": []}
            ]}}"#;
        let packages = read_packages(metadata).unwrap();
        assert_eq!((packages[0].is_ours, packages[0].needs.as_slice()), (true, &["bytes".to_owned()][..]));
        assert_eq!((packages[1].is_ours, packages[1].links.as_deref()), (false, Some("c")));
        assert!(read_packages("{}").is_err() && read_packages("no").is_err());
    }
}
