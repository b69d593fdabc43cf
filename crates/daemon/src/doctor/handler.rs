//! Checks that a handler is available, without sending it a message.

use std::path::{Path, PathBuf};

use lazaret_config::{Consumer as ConsumerConfig, Handler, HttpHandler as HttpConfig};
use lazaret_handlers::{CertificateProblem, HttpHandler, HttpOptions, ProbeError, probe};
use rustix::fs::{Access, access};

use super::finding::{Finding, Health, PROBE_TIMEOUT};
use crate::assemble;

/// Checks the handler of a consumer.
pub(super) async fn check(config: &ConsumerConfig) -> Finding {
    let subject = format!("{} handler", config.name);
    // This validates certificates, headers and limits.
    if let Err(error) = assemble::handler(config) {
        return Finding::fail(subject, error.to_string(), "correct `handler`");
    }
    match &config.handler {
        Handler::Http(http) => reachable(subject, config, http).await,
        Handler::Command(command) => {
            let (program, arguments) =
                command.program.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
            let found = executable(subject, program, std::env::var_os("PATH").unwrap_or_default().as_ref());
            missing_script(&found, arguments, Path::new("")).unwrap_or(found)
        }
        _ => Finding::warn(subject, "no check for this kind of handler", "check it manually"),
    }
}

/// Checks that the service accepts connections, that it knows the path, and over https that its certificate is trusted. No message is
/// sent.
async fn reachable(subject: String, config: &ConsumerConfig, http: &HttpConfig) -> Finding {
    let Some((host, port)) = place(&http.url) else {
        return Finding::fail(subject, "the URL has no host and port", "correct `url`");
    };
    let options = assemble::http_options(config, http);
    let probed = tokio::time::timeout(PROBE_TIMEOUT, probe(&options)).await;
    if matches!(probed, Ok(Ok(())))
        && let Some(status) = missing_path(options).await
    {
        let detail = format!("{host}:{port} answers {status} to OPTIONS at the path of `url`");
        return Finding::warn(subject, detail, CHECK_PATH);
    }
    match probed {
        Ok(Ok(())) if http.url.starts_with("https:") => {
            Finding::ok(subject, format!("{host}:{port} accepts connections, and its certificate is trusted"))
        }
        Ok(Ok(())) => Finding::ok(subject, format!("{host}:{port} accepts connections")),
        Ok(Err(error)) => {
            let advice = advice(&error, &host, http.tls_ca.as_deref());
            Finding::fail(subject, format!("{host}:{port}: {error}"), advice)
        }
        Err(_) => Finding::fail(
            subject,
            format!("no connection to {host}:{port} within {PROBE_TIMEOUT:?}"),
            START_IT,
        ),
    }
}

const START_IT: &str =
    "start the service, or correct `url`; until then the circuit breaker opens and messages wait";

const CHECK_PATH: &str =
    "check the path in `url`: a handler that answers 404 to messages parks each of them as UNSUPPORTED";

/// Asks the service for the path of the handler. Returns the status if it says that there is none.
async fn missing_path(options: HttpOptions) -> Option<u16> {
    let handler = HttpHandler::new(options).ok()?;
    let status = tokio::time::timeout(PROBE_TIMEOUT, handler.probe_path()).await.ok()?.ok()?;
    // Other answers, such as 405 and 501, are about the method.
    matches!(status, 404 | 410).then_some(status)
}

/// Returns the advice for a failed probe.
fn advice(error: &ProbeError, host: &str, authorities: Option<&Path>) -> String {
    let ProbeError::Certificate { problem, .. } = error else {
        return match error {
            ProbeError::Tls(_) => {
                "check that the service uses TLS on this port; for plain HTTP write `http://`".to_owned()
            }
            ProbeError::Options(_) => "correct `handler`".to_owned(),
            _ => START_IT.to_owned(),
        };
    };
    match (problem, authorities) {
        (CertificateProblem::UnknownIssuer, Some(file)) => format!(
            "add the certificate of the issuing authority to {}, the file in `tls-ca`",
            file.display()
        ),
        (CertificateProblem::UnknownIssuer, None) => {
            "save the certificate of the issuing authority as a PEM file, and set `tls-ca` to its path"
                .to_owned()
        }
        (CertificateProblem::NameMismatch, _) => {
            format!("use the host name of the certificate in `url`, or issue a certificate for {host}")
        }
        (CertificateProblem::Expired, _) => "renew the certificate; if it is new, set the clock of this machine".to_owned(),
        (CertificateProblem::NotYetValid, _) => "set the clock of this machine, or wait until the certificate is valid".to_owned(),
        (CertificateProblem::CaAsEndEntity, _) => {
            "the server uses a CA certificate (CA:TRUE): issue a server certificate with it and keep it in `tls-ca`, or create it again \
             with openssl and -addext basicConstraints=critical,CA:FALSE"
                .to_owned()
        }
        (_, _) => "replace the certificate of the handler".to_owned(),
    }
}

/// Returns the host and the port of a valid URL, without secrets.
fn place(url: &str) -> Option<(String, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let default_port = if scheme == "https" { 443 } else { 80 };
    if let Some(v6) = host.strip_prefix('[') {
        let (address, port) = v6.split_once(']')?;
        let port = port.strip_prefix(':').map_or(Some(default_port), |port| port.parse().ok())?;
        return Some((address.to_owned(), port));
    }
    match host.split_once(':') {
        Some((name, port)) => Some((name.to_owned(), port.parse().ok()?)),
        None => Some((host.to_owned(), default_port)),
    }
}

/// Checks that the program is executable, without running it.
fn executable(subject: String, program: &str, path: &Path) -> Finding {
    let found = find(program, path);
    match &found {
        Some(file) if access(file, Access::EXEC_OK).is_ok() => {
            Finding::ok(subject, format!("{program} is {}", file.display()))
        }
        Some(file) => {
            let detail = format!("{} is not executable", file.display());
            Finding::fail(subject, detail, format!("make it executable: chmod +x {}", file.display()))
        }
        None => {
            let advice = "install it, or set its path in `program`";
            Finding::fail(subject, format!("program not found: {program:?}"), advice)
        }
    }
}

/// Warns if an argument looks like a script that does not exist. Relative paths are resolved from `here`, as for the handler.
fn missing_script(program: &Finding, arguments: &[String], here: &Path) -> Option<Finding> {
    if program.health != Health::Ok {
        return None;
    }
    let script = arguments.iter().find(|argument| looks_like_script(argument))?;
    if here.join(script).exists() {
        return None;
    }
    let detail = format!("{}, but {script} does not exist", program.detail);
    let advice = "create it, or correct its path in `program`; relative paths start at the working directory of the daemon";
    Some(Finding::warn(program.subject.clone(), detail, advice))
}

/// Returns whether an argument has the file extension of a script.
fn looks_like_script(argument: &str) -> bool {
    const EXTENSIONS: [&str; 12] =
        ["py", "sh", "bash", "js", "mjs", "cjs", "ts", "rb", "pl", "php", "lua", "jar"];
    let extension = Path::new(argument).extension().and_then(|extension| extension.to_str());
    !argument.starts_with('-') && extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}

/// Finds a program on the path. Executable files take precedence.
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

    #[tokio::test]
    async fn a_path_that_the_service_does_not_know_is_told() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let answers = async |status: &'static str| {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/evnts", listener.local_addr().unwrap());
            tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 4096];
                let length = stream.read(&mut request).await.unwrap();
                assert!(request[..length].starts_with(b"OPTIONS /evnts HTTP/1.1"));
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            });
            missing_path(HttpOptions::new(&url)).await
        };
        assert_eq!(answers("404 Not Found").await, Some(404));
        assert_eq!(answers("405 Method Not Allowed").await, None);
        assert_eq!(answers("204 No Content").await, None);
    }

    #[test]
    fn every_certificate_problem_has_its_own_advice() {
        let told = |problem, file: Option<&str>| {
            let error = ProbeError::Certificate { problem, why: String::new() };
            advice(&error, "handlers.internal", file.map(Path::new))
        };
        let table = [
            (told(CertificateProblem::UnknownIssuer, None), "set `tls-ca` to its path"),
            (told(CertificateProblem::UnknownIssuer, Some("ca.pem")), "to ca.pem"),
            (told(CertificateProblem::NameMismatch, None), "a certificate for handlers.internal"),
            (told(CertificateProblem::Expired, None), "renew the certificate"),
            (told(CertificateProblem::NotYetValid, None), "set the clock"),
            (told(CertificateProblem::CaAsEndEntity, Some("ca.pem")), "CA:FALSE"),
            (advice(&ProbeError::Tls(String::new()), "h", None), "`http://`"),
        ];
        for (advice, expected) in table {
            assert!(advice.contains(expected), "{advice}");
        }
    }

    #[test]
    fn a_missing_script_is_a_warning() {
        let here = tempfile::tempdir().unwrap();
        let python = Finding::ok("h", "python3 is /bin/python3");
        let look = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            missing_script(&python, &words, here.path())
        };
        let found = look(&["-u", "handler.py"]).unwrap();
        assert!(
            found.health == Health::Warn && found.detail.contains("handler.py does not exist"),
            "{found}"
        );
        std::fs::write(here.path().join("handler.py"), "").unwrap();
        assert!(look(&["-u", "handler.py"]).is_none());
        // Other arguments are not checked.
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
