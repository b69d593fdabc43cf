//! Whether a handler is there. It is never called: a message is handled by consumers only.

use std::path::{Path, PathBuf};

use lazaret_config::{Consumer as Wanted, Handler, HttpHandler};
use lazaret_handlers::{CertificateFault, Unreachable, knock};
use rustix::fs::{Access, access};

use super::{Finding, Health, PATIENCE};
use crate::assemble;

/// Looks for the handler of a consumer.
pub(super) async fn examine(wanted: &Wanted) -> Finding {
    let subject = format!("{} handler", wanted.name);
    // Certificates, headers and limits are looked at here.
    if let Err(error) = assemble::handler(wanted) {
        return Finding::fail(subject, error.to_string(), "correct `handler`");
    }
    match &wanted.handler {
        Handler::Http(http) => reachable(subject, wanted, http).await,
        Handler::Command(command) => {
            let (program, arguments) =
                command.program.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
            let found = executable(subject, program, std::env::var_os("PATH").unwrap_or_default().as_ref());
            missing_script(&found, arguments, Path::new("")).unwrap_or(found)
        }
        _ => Finding::warn(subject, "it is of a kind that cannot be looked at", "see for yourself"),
    }
}

/// Whether somebody listens there and, over https, whether its certificate is trusted. No request is sent.
async fn reachable(subject: String, wanted: &Wanted, http: &HttpHandler) -> Finding {
    let Some((host, port)) = place(&http.url) else {
        return Finding::fail(subject, "its URL has no host and port", "correct `url`");
    };
    let knocked = tokio::time::timeout(PATIENCE, knock(&assemble::http_options(wanted, http))).await;
    match knocked {
        Ok(Ok(())) if http.url.starts_with("https:") => {
            Finding::ok(subject, format!("{host}:{port} takes connections, and its certificate is trusted"))
        }
        Ok(Ok(())) => Finding::ok(subject, format!("{host}:{port} takes connections")),
        Ok(Err(error)) => {
            let advice = advice(&error, &host, http.tls_ca.as_deref());
            Finding::fail(subject, format!("{host}:{port}: {error}"), advice)
        }
        Err(_) => {
            Finding::fail(subject, format!("{host}:{port} does not answer within {PATIENCE:?}"), START_IT)
        }
    }
}

const START_IT: &str = "start it, or correct `url`; until then the breaker opens and messages wait";

/// What to do about a handler that could not be called.
fn advice(error: &Unreachable, host: &str, authorities: Option<&Path>) -> String {
    let Unreachable::Certificate { fault, .. } = error else {
        return match error {
            Unreachable::Tls(_) => {
                "see whether it speaks TLS there; for plain HTTP write `http://`".to_owned()
            }
            Unreachable::Options(_) => "correct `handler`".to_owned(),
            _ => START_IT.to_owned(),
        };
    };
    match (fault, authorities) {
        (CertificateFault::UnknownIssuer, Some(file)) => format!(
            "put the certificate of the authority that signed it into {}, which `tls-ca` names",
            file.display()
        ),
        (CertificateFault::UnknownIssuer, None) => {
            "put the certificate of the authority that signed it into a PEM file, and name that file in `tls-ca`"
                .to_owned()
        }
        (CertificateFault::OtherName, _) => {
            format!("write the name in `url` for which it was made, or make a certificate for {host}")
        }
        (CertificateFault::Expired, _) => "renew it; if it is new, set the clock of this machine".to_owned(),
        (CertificateFault::NotYet, _) => "set the clock of this machine, or wait until it is good".to_owned(),
        (CertificateFault::IsAuthority, _) => {
            "it may sign others (CA:TRUE), and so it cannot be that of a server: sign one for the server with it and keep it in \
             `tls-ca`, or make it anew without that, as openssl does with -addext basicConstraints=critical,CA:FALSE"
                .to_owned()
        }
        (_, _) => "give the handler another certificate".to_owned(),
    }
}

/// The host and the port of a URL that was checked, without what may be secret in it.
fn place(url: &str) -> Option<(String, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let usual = if scheme == "https" { 443 } else { 80 };
    if let Some(v6) = host.strip_prefix('[') {
        let (address, port) = v6.split_once(']')?;
        let port = port.strip_prefix(':').map_or(Some(usual), |port| port.parse().ok())?;
        return Some((address.to_owned(), port));
    }
    match host.split_once(':') {
        Some((name, port)) => Some((name.to_owned(), port.parse().ok()?)),
        None => Some((host.to_owned(), usual)),
    }
}

/// Whether the program can be run, without running it.
fn executable(subject: String, program: &str, path: &Path) -> Finding {
    let found = find(program, path);
    match &found {
        Some(file) if access(file, Access::EXEC_OK).is_ok() => {
            Finding::ok(subject, format!("{program} is {}", file.display()))
        }
        Some(file) => {
            let seen = format!("{} cannot be run", file.display());
            Finding::fail(subject, seen, format!("make it executable: chmod +x {}", file.display()))
        }
        None => {
            let advice = "install it, or write its path in `program`";
            Finding::fail(subject, format!("there is no program {program:?}"), advice)
        }
    }
}

/// A warning if the program is there and the script that it is to run is not. Only a guess by its name: what an argument means
/// is known to the program alone. Paths are meant as the handler will take them, from `here`.
fn missing_script(program: &Finding, arguments: &[String], here: &Path) -> Option<Finding> {
    if program.health != Health::Ok {
        return None;
    }
    let script = arguments.iter().find(|argument| looks_like_script(argument))?;
    if here.join(script).exists() {
        return None;
    }
    let seen = format!("{}, but there is no {script}", program.seen);
    let advice =
        "write it, or correct its path in `program`; a relative one begins where the daemon is started";
    Some(Finding::warn(program.subject.clone(), seen, advice))
}

/// Whether an argument is the name of a script, by its ending.
fn looks_like_script(argument: &str) -> bool {
    const ENDINGS: [&str; 12] =
        ["py", "sh", "bash", "js", "mjs", "cjs", "ts", "rb", "pl", "php", "lua", "jar"];
    let ending = Path::new(argument).extension().and_then(|ending| ending.to_str());
    !argument.starts_with('-') && ending.is_some_and(|ending| ENDINGS.contains(&ending))
}

/// The file that a name means, as the system finds it. One that can be run goes before one that cannot.
fn find(program: &str, path: &Path) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|file| file.is_file());
    }
    let folders = std::env::split_paths(path);
    let mut there: Vec<_> =
        folders.map(|folder| folder.join(program)).filter(|file| file.is_file()).collect();
    there.sort_by_key(|file| access(file, Access::EXEC_OK).is_err());
    there.into_iter().next()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_place_of_a_url_is_its_host_and_port() {
        let at = |url| place(url).map(|(host, port)| format!("{host} {port}"));
        assert_eq!(at("http://127.0.0.1:8080/events").as_deref(), Some("127.0.0.1 8080"));
        assert_eq!(at("https://user:secret@handlers.internal/?a").as_deref(), Some("handlers.internal 443"));
        assert_eq!(at("http://[::1]:9/").as_deref(), Some("::1 9"));
        assert_eq!(at("http://[::1]").as_deref(), Some("::1 80"));
    }

    #[test]
    fn every_trouble_with_a_certificate_has_its_own_advice() {
        let told = |fault, file: Option<&str>| {
            let error = Unreachable::Certificate { fault, why: String::new() };
            advice(&error, "handlers.internal", file.map(Path::new))
        };
        let table = [
            (told(CertificateFault::UnknownIssuer, None), "name that file in `tls-ca`"),
            (told(CertificateFault::UnknownIssuer, Some("ca.pem")), "into ca.pem"),
            (told(CertificateFault::OtherName, None), "a certificate for handlers.internal"),
            (told(CertificateFault::Expired, None), "renew it"),
            (told(CertificateFault::NotYet, None), "set the clock"),
            (told(CertificateFault::IsAuthority, Some("ca.pem")), "CA:FALSE"),
            (advice(&Unreachable::Tls(String::new()), "h", None), "`http://`"),
        ];
        for (advice, expected) in table {
            assert!(advice.contains(expected), "{advice}");
        }
    }

    #[test]
    fn a_script_that_is_not_there_is_a_warning() {
        let here = tempfile::tempdir().unwrap();
        let python = Finding::ok("h", "python3 is /bin/python3");
        let look = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            missing_script(&python, &words, here.path())
        };
        let found = look(&["-u", "handler.py"]).unwrap();
        assert!(found.health == Health::Warn && found.seen.contains("there is no handler.py"), "{found}");
        std::fs::write(here.path().join("handler.py"), "").unwrap();
        assert!(look(&["-u", "handler.py"]).is_none());
        // What does not look like a script is not our business.
        assert!(look(&["-m", "shop.handler", "--out=x.py", "http://x/"]).is_none());
    }

    #[test]
    fn a_program_is_found_on_the_path_and_must_be_executable() {
        let here = tempfile::tempdir().unwrap();
        let file = here.path().join("handle");
        let look = |program: &str| executable("h".into(), program, here.path());
        assert_eq!(look("handle").health, Health::Fail);
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        let found = look("handle");
        assert!(found.health == Health::Fail && found.advice.unwrap().contains("chmod +x"));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(look("handle").health, Health::Ok);
        assert_eq!(look(file.to_str().unwrap()).health, Health::Ok);
    }
}
