//! The deployment files match the program: referenced files exist, commands parse, configurations are valid. Images are not built
//! here.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use granit_parser::Event;
use lazaret_cli::Cli;
use lazaret_config::{Capabilities, Capability, Loaded, NoEnv, load};

use crate::pages::{Page, root};

/// A YAML document, as far as these tests need it.
#[derive(Debug)]
enum Yaml {
    Text(String),
    List(Vec<Yaml>),
    Map(BTreeMap<String, Yaml>),
}

impl Yaml {
    fn read(text: &str) -> Self {
        let mut events = granit_parser::Parser::new_from_str(text).map(|event| event.unwrap().0);
        let first = events.find(|event| is_value(event)).unwrap();
        Self::value(first, &mut events)
    }

    fn value<'a>(event: Event<'a>, events: &mut impl Iterator<Item = Event<'a>>) -> Self {
        match event {
            Event::Scalar(text, ..) => Self::Text(text.to_string()),
            Event::SequenceStart(..) => {
                let mut list = Vec::new();
                while let Some(next) = events.next().filter(is_value) {
                    list.push(Self::value(next, events));
                }
                Self::List(list)
            }
            Event::MappingStart(..) => {
                let mut map = BTreeMap::new();
                while let Some(Event::Scalar(key, ..)) = events.next() {
                    let next = events.next().unwrap();
                    let known = map.insert(key.to_string(), Self::value(next, events));
                    assert!(known.is_none(), "{key} is given twice");
                }
                Self::Map(map)
            }
            other => panic!("{other:?} is not expected"),
        }
    }

    #[track_caller]
    fn at(&self, key: &str) -> &Self {
        let Self::Map(map) = self else { panic!("{self:?} has no keys") };
        map.get(key).unwrap_or_else(|| panic!("{key} is missing in {:?}", map.keys()))
    }

    #[track_caller]
    fn text(&self) -> &str {
        let Self::Text(text) = self else { panic!("{self:?} is no text") };
        text
    }

    fn list(&self) -> Vec<&str> {
        let Self::List(list) = self else { return Vec::new() };
        list.iter().map(Self::text).collect()
    }
}

fn is_value(event: &Event<'_>) -> bool {
    matches!(event, Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..))
}

fn deploy(file: &str) -> String {
    fs::read_to_string(root().join("deploy").join(file)).unwrap()
}

/// Validates a configuration for the image, which is built with these features.
fn configured(file: &str) -> Loaded {
    let image = Capabilities::of([
        Capability::SourceInbox,
        Capability::SourceFile,
        Capability::SourceKafka,
        Capability::StorePostgres,
        Capability::StoreSqlite,
    ]);
    load(file, deploy(file).as_bytes(), &NoEnv, &image).unwrap_or_else(|found| panic!("{}", found.plain()))
}

#[track_caller]
fn understood(command: &str) {
    let parsed = Cli::try_parse_from(command.split_whitespace());
    assert!(parsed.is_ok(), "{command}: {}", parsed.err().unwrap());
}

#[test]
fn the_configurations_that_are_shipped_are_fine() {
    for file in ["lazaret.yaml", "compose/lazaret.yaml", "compose/fleet.yaml"] {
        let loaded = configured(file);
        assert_eq!(loaded.warnings.warnings(), 0, "{}", loaded.warnings.plain());
    }
}

#[test]
fn the_compose_files_name_what_is_there() {
    names_what_is_there("compose.yaml", "lazaret");
    names_what_is_there("compose-fleet.yaml", "lazaret-1");
    for name in ["postgres", "mongodb", "mongodb-failover"] {
        let compose = Yaml::read(&deploy("compose.yaml"));
        assert_eq!(compose.at("services").at(name).at("profiles").list(), ["tests"]);
    }
}

fn names_what_is_there(file: &str, daemon: &str) {
    let compose = Yaml::read(&deploy(file));
    let services = compose.at("services");
    let Yaml::Map(all) = services else { panic!() };
    for (name, service) in all {
        let Yaml::Map(keys) = service else { panic!() };
        assert!(keys.contains_key("image"), "{name} has no image");
        for mount in keys.get("volumes").map(Yaml::list).unwrap_or_default() {
            let from = mount.split(':').next().unwrap();
            let is_named = matches!(compose.at("volumes"), Yaml::Map(volumes) if volumes.contains_key(from));
            assert!(is_named || root().join("deploy").join(from).is_file(), "{name}: {from} is not there");
        }
        if let Some(ports) = keys.get("ports") {
            assert!(
                ports.list().iter().all(|port| port.starts_with("127.0.0.1:")),
                "{name} is open to others"
            );
        }
    }
    let build = services.at(daemon).at("build");
    let context = root().join("deploy").join(build.at("context").text());
    assert!(context.join(build.at("dockerfile").text()).is_file());
}

#[test]
fn the_compose_file_and_its_configuration_fit() {
    let services = Yaml::read(&deploy("compose.yaml"));
    let services = services.at("services");
    let config = deploy("compose/lazaret.yaml");
    let listeners = services.at("kafka").at("environment").at("KAFKA_ADVERTISED_LISTENERS").text();
    assert!(config.contains("brokers: \"kafka:9092\"") && listeners.contains("INSIDE://kafka:9092"));
    assert!(services.at("topics").at("command").list().contains(&"--topic=orders"));
    assert!(config.contains("topics: [orders]"));
    // The handler is a sidecar, so its port is one of the container of Lazaret.
    assert_eq!(services.at("handler").at("network_mode").text(), "service:lazaret");
    let port = services.at("handler").at("environment").at("PORT").text();
    assert!(config.contains(&format!("http://127.0.0.1:{port}/")));
    let grace = services.at("lazaret").at("stop_grace_period").text().trim_end_matches('s').parse().unwrap();
    assert!(Duration::from_secs(grace) > drain_deadline());
}

#[test]
fn the_daemons_of_the_fleet_differ_only_in_their_folder() {
    let compose = Yaml::read(&deploy("compose-fleet.yaml"));
    let services = compose.at("services");
    let config = deploy("compose/fleet.yaml");
    assert!(
        config.contains("@postgres/lazaret")
            && services.at("postgres").at("environment").at("POSTGRES_DB").text() == "lazaret"
    );
    let of = |name: &str| {
        services.at(name).at("volumes").list().iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()
    };
    let (first, second) = (of("lazaret-1"), of("lazaret-2"));
    assert_eq!(first[0], second[0], "the same configuration");
    assert_ne!(first[1], second[1], "a flight recorder each");
    for number in [1, 2] {
        let handler = services.at(&format!("handler-{number}"));
        assert_eq!(handler.at("network_mode").text(), format!("service:lazaret-{number}"));
        let port = handler.at("environment").at("PORT").text();
        assert!(config.contains(&format!("http://127.0.0.1:{port}/")));
        let daemon = services.at(&format!("lazaret-{number}"));
        assert_eq!(
            daemon.at("environment").at("LAZARET_DB_PASSWORD").text(),
            services.at("postgres").at("environment").at("POSTGRES_PASSWORD").text()
        );
        let grace = daemon.at("stop_grace_period").text().trim_end_matches('s').parse().unwrap();
        assert!(Duration::from_secs(grace) > drain_deadline());
    }
}

fn drain_deadline() -> Duration {
    configured("lazaret.yaml").config.consumers[0].advanced.drain_deadline
}

/// The image is named by the digest of its content, not only by a tag.
fn is_pinned(image: &str) -> bool {
    let digest = image.split_once("@sha256:").map(|(_, digest)| digest);
    digest.is_some_and(|digest| digest.len() == 64 && digest.chars().all(|c| c.is_ascii_hexdigit()))
}

#[test]
fn the_images_of_the_compose_files_are_pinned_by_digest() {
    for file in ["compose.yaml", "compose-fleet.yaml"] {
        let compose = Yaml::read(&deploy(file));
        let Yaml::Map(services) = compose.at("services") else { panic!("{file} has no services") };
        // The image that the file builds itself has no digest yet.
        for (name, service) in services.iter().filter(|(_, service)| service.at("image").text() != "lazaret")
        {
            assert!(is_pinned(service.at("image").text()), "{name} of {file}");
        }
    }
}

#[test]
fn the_image_is_built_of_what_is_there_and_runs_what_is_understood() {
    let text = deploy("Dockerfile").replace("\\\n", " ");
    let of = |word: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(word));
        lines.map(|rest| rest.trim().to_owned()).collect()
    };
    for copied in of("COPY ").iter().filter(|rest| !rest.starts_with("--from")) {
        let from = copied.split_whitespace().next().unwrap();
        assert!(root().join(from).exists(), "{from} is not there");
    }
    let runs = of("RUN ");
    let build = runs.iter().find(|run| run.starts_with("cargo build")).unwrap();
    assert!(Page::named("deploying.md").text.contains(build.as_str()), "the guide builds otherwise");
    let pinned = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    // Both images can be replaced.
    assert_eq!(of("FROM "), ["${BUILD_IMAGE} AS build", "${RUNTIME_IMAGE}"]);
    let images = of("ARG ");
    let build_image = images[0].strip_prefix("BUILD_IMAGE=").unwrap();
    let runtime_image = images[1].strip_prefix("RUNTIME_IMAGE=").unwrap();
    assert!(is_pinned(build_image) && is_pinned(runtime_image), "{images:?}");
    let version = build_image.split([':', '-']).nth(1).unwrap().to_owned();
    assert!(
        pinned.contains(&format!("rust-version = \"{version}\"")),
        "the image builds with Rust {version}"
    );
    for run in runs.iter().flat_map(|run| run.split("&&")) {
        if let Some(arguments) = run.trim().strip_prefix("target/dist/lazaret ") {
            understood(&format!("lazaret {}", arguments.split('>').next().unwrap()));
        }
    }
    let exec = |words: &str| -> String { serde_json::from_str::<Vec<String>>(words).unwrap().join(" ") };
    assert_eq!(exec(&of("ENTRYPOINT ")[0]), "lazaret");
    understood(&format!("lazaret {}", exec(&of("CMD ")[0])));
    understood(&exec(of("HEALTHCHECK ")[0].split_once("CMD ").unwrap().1));
    assert!(!matches!(&*of("USER ")[0], "root" | "0"));
}

/// The values of a key of the unit.
fn unit(key: &str) -> Vec<String> {
    let text = deploy("lazaret.service");
    let values = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    values.map(str::to_owned).collect()
}

#[test]
fn the_unit_starts_reloads_and_stops_as_the_daemon_wants() {
    for key in ["ExecStartPre", "ExecStart"] {
        let command = unit(key).remove(0);
        let command = command.strip_prefix("/usr/local/bin/").unwrap();
        understood(command);
        assert!(command.ends_with("/etc/lazaret/lazaret.yaml"));
    }
    assert_eq!(unit("ExecReload"), ["/bin/kill -HUP $MAINPID"]);
    assert_eq!(unit("LoadCredential"), ["lazaret-tokens"]);
    for limit in ["MemoryMax", "TasksMax", "LimitNOFILE"] {
        assert_eq!(unit(limit).len(), 1, "{limit}");
    }
    let stop = unit("TimeoutStopSec").remove(0).trim_end_matches('s').parse().unwrap();
    assert!(Duration::from_secs(stop) > drain_deadline());
}

/// Verifies the unit with systemd, where it is installed.
#[test]
#[cfg(target_os = "linux")]
fn systemd_takes_the_unit() {
    use std::process::Command;
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        println!("not run: systemd-analyze is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lazaret.service");
    let text = deploy("lazaret.service").replace("/usr/local/bin/lazaret", env!("CARGO_BIN_EXE_lazaret"));
    // The man page need not be installed here.
    let text: Vec<&str> = text.lines().filter(|line| !line.starts_with("Documentation=")).collect();
    fs::write(&path, text.join("\n")).unwrap();
    let told = verify(&path);
    assert!(!told.contains("lazaret.service"), "{told}");

    fs::write(&path, text.join("\n").replace("Type=exec", "Type=sometimes")).unwrap();
    assert!(verify(&path).contains("lazaret.service"), "nothing would be found");
}

#[cfg(target_os = "linux")]
fn verify(unit: &Path) -> String {
    let output = std::process::Command::new("systemd-analyze").arg("verify").arg(unit).output().unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_file_is_named_in_the_overview() {
    let overview = deploy("README.md");
    let files = [
        "Dockerfile",
        "compose.yaml",
        "compose-fleet.yaml",
        "compose/fleet.yaml",
        "compose/lazaret.yaml",
        "lazaret.service",
        "lazaret.yaml",
    ];
    for file in files {
        assert!(root().join("deploy").join(file).is_file() && overview.contains(&format!("| `{file}` |")));
    }
}
