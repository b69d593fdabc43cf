//! Roles: the rights of the groups of an identity provider.

use lazaret_api::Scope;

use super::session::Person;

/// The rights of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// The name of the group.
    pub group: String,
    /// The scopes of its members.
    pub scopes: Vec<Scope>,
    /// The consumers that they are limited to; empty for all.
    pub consumers: Vec<String>,
}

/// Why somebody has no rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoleError {
    /// None of the groups has a role.
    #[error("none of the groups has a role")]
    NoRole,
    /// The name cannot be recorded in the audit.
    #[error("{0}")]
    InvalidName(&'static str),
}

/// Gives a person the rights of the first role of one of the groups. Roles are not added up: scopes of one for the consumers of another
/// would be more than either grants.
///
/// # Errors
/// When no group has a role, or the name is not valid.
///
/// ```
/// use lazaret_api::Scope;
/// use lazaret_server::{Role, RoleError, person_in_groups};
/// let roles = [
///     Role { group: "oncall".into(), scopes: vec![Scope::Read, Scope::Triage], consumers: vec!["payments".into()] },
///     Role { group: "staff".into(), scopes: vec![Scope::Read], consumers: vec![] },
/// ];
/// let ada = person_in_groups("ada", &["staff", "oncall"], &roles).unwrap();
/// assert_eq!(ada.consumers(), ["payments"]);
/// assert_eq!(person_in_groups("eve", &["sales"], &roles), Err(RoleError::NoRole));
/// ```
pub fn person_in_groups(name: &str, groups: &[impl AsRef<str>], roles: &[Role]) -> Result<Person, RoleError> {
    let is_member = |role: &&Role| groups.iter().any(|group| group.as_ref() == role.group);
    let role = roles.iter().find(is_member).ok_or(RoleError::NoRole)?;
    let person = Person::new(name, role.scopes.clone(), role.consumers.clone());
    person.map_err(RoleError::InvalidName)
}
