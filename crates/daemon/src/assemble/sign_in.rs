//! Builds the sign-in to the console: sessions, the reverse proxy and the identity provider.

use std::path::Path;

use lazaret_api::Scope;
use lazaret_config::{Console, Oidc, Proxy, Role as RoleConfig};
use lazaret_console::{OidcOptions, Options};
use lazaret_server::{ProxyPersons, Role, SessionLimits, TrustedProxy};

use crate::error::Error;

/// Returns the limits of sessions, within the other limits of the server.
pub(crate) fn sessions(console: &Console) -> SessionLimits {
    SessionLimits {
        idle: console.session_idle,
        lifetime: console.session_lifetime,
        ..SessionLimits::default()
    }
}

/// Returns the reverse proxy that is trusted.
pub(crate) fn proxy(console: &Console) -> Result<Option<TrustedProxy>, Error> {
    console.proxy.as_ref().map(trusted).transpose()
}

fn trusted(proxy: &Proxy) -> Result<TrustedProxy, Error> {
    let wrong = |why: String| Error::SignIn { key: "console.proxy", why };
    let persons = match &proxy.user_header {
        Some(user_header) => {
            let header = |name: &str| name.parse().map_err(|_| wrong(format!("{name:?} is not a header")));
            Some(ProxyPersons {
                user_header: header(user_header)?,
                groups_header: header(&proxy.groups_header)?,
                roles: roles(&proxy.roles).map_err(wrong)?,
            })
        }
        None => None,
    };
    Ok(TrustedProxy { networks: proxy.trusted.clone(), persons })
}

/// Returns the options of the console. The secret of the provider's client is read from its file.
pub(crate) fn console(console: &Console) -> Result<Options, Error> {
    let oidc = console.oidc.as_ref().map(provider).transpose()?;
    Ok(Options { oidc, trace_url: console.trace_url.clone() })
}

fn provider(oidc: &Oidc) -> Result<OidcOptions, Error> {
    let wrong = |why: String| Error::SignIn { key: "console.oidc", why };
    let client_secret = match (&oidc.client_secret, &oidc.client_secret_file) {
        (Some(secret), _) => Some(secret.reveal().to_owned()),
        (None, Some(path)) => Some(secret_in(path).map_err(wrong)?),
        (None, None) => None,
    };
    Ok(OidcOptions {
        issuer: oidc.issuer.clone(),
        client_id: oidc.client_id.clone(),
        client_secret,
        scopes: oidc.scopes.iter().filter(|scope| *scope != "openid").cloned().collect(),
        person_claim: oidc.person_claim.clone(),
        groups_claim: oidc.groups_claim.clone(),
        roles: roles(&oidc.roles).map_err(wrong)?,
    })
}

/// Reads a secret. A line break at its end is that of an editor.
fn secret_in(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    match text.trim_end_matches(['\n', '\r']) {
        "" => Err(format!("{} is empty", path.display())),
        secret => Ok(secret.to_owned()),
    }
}

fn roles(configured: &[RoleConfig]) -> Result<Vec<Role>, String> {
    let role = |role: &RoleConfig| {
        let scopes = role.scopes.iter().map(|word| word.parse::<Scope>()).collect::<Result<_, _>>();
        let scopes = scopes.map_err(|error| error.to_string())?;
        Ok(Role { group: role.group.clone(), scopes, consumers: role.consumers.clone() })
    };
    configured.iter().map(role).collect()
}

#[cfg(test)]
mod tests {
    use lazaret_config::{NoEnv, check};

    use super::*;

    fn configured(oidc: &str) -> Console {
        let text = format!(
            "auth: {{ tokens-file: tokens.yaml }}\nconsole:\n  session: {{ idle: 5m }}\n  oidc:\n    \
             issuer: https://login.example.com\n    client-id: lazaret\n    scopes: [openid, groups]\n    \
             roles: [{{ group: ops, scopes: [read, triage] }}]\n{oidc}  proxy: {{ trusted: [10.1.0.0/16] }}\n\
             consumers: {{}}\n"
        );
        let checked = check("lazaret.yaml", text.as_bytes(), &NoEnv);
        checked.config.unwrap_or_else(|| panic!("{}", checked.diagnostics.plain())).console
    }

    #[test]
    fn the_secret_is_read_from_a_file() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("secret");
        let console_of = || console(&configured(&format!("    client-secret-file: '{}'\n", path.display())));
        assert!(console_of().unwrap_err().to_string().contains("console.oidc"));
        std::fs::write(&path, "\n").unwrap();
        assert!(console_of().unwrap_err().to_string().contains("empty"));
        std::fs::write(&path, "hunter2\n").unwrap();
        let oidc = console_of().unwrap().oidc.unwrap();
        assert_eq!(oidc.client_secret.as_deref(), Some("hunter2"));
        assert_eq!(oidc.scopes, ["groups"]);
        assert_eq!(oidc.roles[0].scopes, [Scope::Read, Scope::Triage]);
    }

    #[test]
    fn a_proxy_that_authenticates_nobody_is_trusted_for_the_connection() {
        let console = configured("");
        assert_eq!(sessions(&console).idle.as_secs(), 300);
        let proxy = proxy(&console).unwrap().unwrap();
        assert!(proxy.persons.is_none());
        assert_eq!(proxy.networks.len(), 1);
    }
}
