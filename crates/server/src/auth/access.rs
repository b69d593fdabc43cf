//! The access rule of a route.

use lazaret_api::Scope;

use super::caller::Caller;
use crate::api_error::Result;

/// What a caller needs to use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing: public.
    Public,
    /// Authentication, with any scope.
    Authenticated,
    /// This scope.
    Scope(Scope),
    /// One of these scopes; the handler checks further by the request.
    AnyScope(&'static [Scope]),
}

impl Access {
    /// Checks the caller; the error names the missing scope.
    pub(crate) fn check(self, caller: Result<Caller>) -> Result<()> {
        match self {
            Self::Public => Ok(()),
            Self::Authenticated => caller.map(|_| ()),
            Self::Scope(scope) => caller?.require(scope),
            Self::AnyScope(scopes) => {
                let caller = caller?;
                match scopes.iter().any(|scope| caller.identity.may(*scope)) {
                    true => Ok(()),
                    false => scopes.iter().try_for_each(|scope| caller.require(*scope)),
                }
            }
        }
    }

    /// The scopes that grant access.
    pub(crate) fn scopes(self) -> Vec<&'static str> {
        match self {
            Self::Public | Self::Authenticated => Vec::new(),
            Self::Scope(scope) => vec![scope.as_str()],
            Self::AnyScope(scopes) => scopes.iter().map(|scope| scope.as_str()).collect(),
        }
    }
}
