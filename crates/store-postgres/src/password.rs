//! The password of a connection whose DSN holds none: from `PGPASSWORD`, or from a password file, as libpq finds it.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use lazaret_core::store::{ErrorKind, Result, StoreError};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::dsn::PORT;

/// The largest password file, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Finds the password for the servers of a configuration. `passfile` is the parameter of the DSN, `env` reads the environment.
///
/// # Errors
/// `Invalid` if a password file that was named cannot be used. The message names the file, and nothing of its content.
pub(crate) fn find(
    config: &Config,
    passfile: Option<&Path>,
    env: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<String>> {
    let env = |name: &str| env(name).filter(|value| !value.is_empty());
    if let Some(password) = env("PGPASSWORD") {
        let password = password.into_string();
        return password.map(Some).map_err(|_| invalid("PGPASSWORD is not UTF-8".to_owned()));
    }
    let named = passfile.map(Path::to_owned).or_else(|| env("PGPASSFILE").map(PathBuf::from));
    let text = match (named, env("HOME")) {
        (Some(path), _) => read(&path)
            .map_err(|why| invalid(format!("the password file {} cannot be used: {why}", path.display())))?,
        (None, Some(home)) => {
            let path = Path::new(&home).join(".pgpass");
            if !path.exists() {
                return Ok(None);
            }
            match read(&path) {
                Ok(text) => text,
                Err(why) => {
                    tracing::warn!("the password file {} is not used: {why}", path.display());
                    return Ok(None);
                }
            }
        }
        (None, None) => return Ok(None),
    };
    let user = config.get_user().map(str::to_owned).or_else(|| env("USER")?.into_string().ok());
    Ok(in_file(&text, config, user.as_deref().unwrap_or_default()))
}

fn invalid(context: String) -> StoreError {
    StoreError::not_done(ErrorKind::Invalid, "open", context)
}

/// Reads a password file, unless others may read it as well.
fn read(path: &Path) -> std::result::Result<String, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a file".to_owned());
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if metadata.permissions().mode() & 0o077 != 0 {
            return Err("others may access it; run `chmod 600`".to_owned());
        }
    }
    let mut text = String::new();
    let size = file.take(MAX_BYTES + 1).read_to_string(&mut text);
    // The error of a file that is not UTF-8 does not repeat it.
    if size.map_err(|error| error.to_string())? as u64 > MAX_BYTES {
        return Err("it is larger than 1 MiB".to_owned());
    }
    Ok(text)
}

/// The password of the first line that fits one of the servers.
fn in_file(text: &str, config: &Config, user: &str) -> Option<String> {
    let database = config.get_dbname().unwrap_or(user);
    let ports = config.get_ports();
    for (number, host) in config.get_hosts().iter().enumerate() {
        let port = ports.get(number).or(ports.first()).copied().unwrap_or(PORT).to_string();
        let host = match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        };
        for [line_host, line_port, line_database, line_user, password] in text.lines().filter_map(fields) {
            // A local socket is written as `localhost`, too.
            let fits_host = fits(&line_host, &host) || (host.starts_with('/') && line_host == "localhost");
            if fits_host
                && fits(&line_port, &port)
                && fits(&line_database, database)
                && fits(&line_user, user)
            {
                return Some(password);
            }
        }
    }
    None
}

fn fits(pattern: &str, value: &str) -> bool {
    pattern == "*" || pattern == value
}

/// The fields `host:port:database:user:password` of a line, in which a backslash escapes a colon and a backslash.
fn fields(line: &str) -> Option<[String; 5]> {
    if line.starts_with('#') {
        return None;
    }
    let mut fields: [String; 5] = Default::default();
    let (mut field, mut escaped) = (0, false);
    for c in line.trim_end_matches('\r').chars() {
        match c {
            '\\' if !escaped => escaped = true,
            ':' if !escaped => {
                field += 1;
                if field == fields.len() {
                    break;
                }
            }
            c => {
                fields[field].push(c);
                escaped = false;
            }
        }
    }
    (field >= 4).then_some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# passwords\n\
        other:5432:shop:ada:wrong\n\
        a.example:5433:*:ada:of-port\n\
        a.example:*:shop:ada:hun\\:ter\\\\2\n\
        localhost:*:*:*:of-socket\n\
        *:*:*:bob:of-bob\r\n\
        incomplete:1:2\n";

    fn config(dsn: &str) -> Config {
        dsn.parse().unwrap()
    }

    fn file(content: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pgpass");
        std::fs::write(&path, content).unwrap();
        restrict(&path, 0o600);
        (folder, path)
    }

    fn restrict(path: &Path, mode: u32) {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        #[cfg(not(unix))]
        let _ = (path, mode);
    }

    #[test]
    fn the_line_of_the_server_the_database_and_the_user_is_found() {
        let (_folder, path) = file(FILE);
        for (dsn, expected) in [
            ("postgres://ada@a.example/shop", Some("hun:ter\\2")),
            ("postgres://ada@a.example:5433/shop", Some("of-port")),
            ("postgres://ada@unknown,a.example/shop", Some("hun:ter\\2")),
            ("postgres://bob@unknown/shop", Some("of-bob")),
            ("host=/run/postgresql user=eve", Some("of-socket")),
            ("postgres://eve@a.example/shop", None),
            ("postgres://ada@a.example/orders", None),
        ] {
            let found = find(&config(dsn), Some(&path), |_| None).unwrap();
            assert_eq!(found.as_deref(), expected, "{dsn}");
        }
    }

    #[test]
    fn the_environment_names_the_password_or_the_file() {
        let (folder, path) = file("*:*:*:*:of-file\n");
        let config = config("postgres://ada@a.example/shop");
        let with = |set: &[(&str, &Path)]| {
            let env = |name: &str| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| value.as_os_str().to_owned())
            };
            find(&config, None, env).unwrap()
        };
        assert_eq!(with(&[]), None);
        assert_eq!(with(&[("PGPASSFILE", path.as_path())]).as_deref(), Some("of-file"));
        let both = [("PGPASSFILE", path.as_path()), ("PGPASSWORD", Path::new("hunter2"))];
        assert_eq!(with(&both).as_deref(), Some("hunter2"));
        assert_eq!(with(&[("PGPASSWORD", Path::new("")), both[0]]).as_deref(), Some("of-file"));
        assert_eq!(with(&[("HOME", folder.path())]), None, "there is no `.pgpass`");
        std::fs::rename(&path, folder.path().join(".pgpass")).unwrap();
        assert_eq!(with(&[("HOME", folder.path())]).as_deref(), Some("of-file"));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named_without_its_content() {
        let (folder, path) = file("*:*:*:*:hunter2\n");
        let config = config("postgres://ada@a.example/shop");
        let refused = |path: &Path| {
            let error = find(&config, Some(path), |_| None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!error.to_string().contains("hunter2"), "{error}");
            assert!(error.context().contains(&path.display().to_string()), "{error}");
        };
        refused(&folder.path().join("missing"));
        refused(folder.path());
        if cfg!(unix) {
            restrict(&path, 0o640);
            refused(&path);
            // The one in the home directory is not used, as with libpq.
            let other = folder.path().join(".pgpass");
            std::fs::rename(&path, &other).unwrap();
            let home = |name: &str| (name == "HOME").then(|| folder.path().as_os_str().to_owned());
            assert_eq!(find(&config, None, home).unwrap(), None);
        }
    }
}
