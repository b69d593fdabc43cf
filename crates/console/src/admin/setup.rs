//! The setup of the server, for administrators: its tokens, its grouping rules, and its effective
//! configuration.

use lazaret_api::{EffectiveConfig, Scope, TokenInfo, TokenList};
use maud::{Markup, html};

use super::grouping;
use crate::api::Result;
use crate::text::{block, visible};
use crate::time::exact_with_age;
use crate::visit::Visit;
use crate::{badge, cli_line, problem};

/// Renders tokens, grouping rules and configuration.
pub(super) async fn sections(visit: &Visit) -> Markup {
    if !visit.may(Scope::Admin) {
        return html! {
            div.section-head #tokens { h2 { "Tokens and configuration" } }
            div.panel.pad { p.muted { "They need the right admin." } }
        };
    }
    let tokens: Result<TokenList> = visit.api.get("/v1/tokens").await;
    let config: Result<EffectiveConfig> = visit.api.get("/v1/config").await;
    html! {
        div.section-head #tokens { h2 { "Tokens" } p.muted { "without their secrets" } }
        @match &tokens { Ok(list) => (table(visit, &list.tokens)), Err(problem) => (problem::banner(problem)) }
        @if let Ok(config) = &config { (grouping::table(&config.consumers)) }
        div.section-head #config { h2 { "Effective configuration" } p.muted { "with the origin of each value; secrets are masked" } }
        @match &config { Ok(config) => (yaml(config)), Err(problem) => (problem::banner(problem)) }
    }
}

fn table(visit: &Visit, tokens: &[TokenInfo]) -> Markup {
    html! {
        @if tokens.is_empty() {
            div.panel.pad { p.muted { "No tokens are configured: the server is open to this machine, and to no other." } }
        } @else {
            div.panel.scroll { table {
                thead { tr { th { "Token" } th { "Person" } th { "Rights" } th { "Consumers" } th { "Expires" } } }
                tbody { @for token in tokens { tr {
                    td { strong { (visible(&token.name)) } }
                    td { (visible(&token.person)) }
                    td { (token.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(", ")) }
                    td { @if token.consumers.is_empty() { "all" } @else { (visible(&token.consumers.join(", "))) } }
                    td { (expiry(visit, token)) }
                } } }
            } }
        }
    }
}

fn expiry(visit: &Visit, token: &TokenInfo) -> Markup {
    html! {
        @match token.expires_at {
            None => span.muted { "never" },
            Some(at) => { @if token.expired { (badge::bad("expired")) " " } (exact_with_age(at, visit.now)) },
        }
    }
}

fn yaml(config: &EffectiveConfig) -> Markup {
    html! {
        div.panel {
            @if let Some(general) = &config.general {
                details.fold #config-general { summary { "General" } pre.yaml { (block(general)) } }
                @for (number, consumer) in config.consumers.iter().enumerate() {
                    details.fold id={ "config-consumer-" (number) } { summary { (visible(&consumer.name)) } pre.yaml { (block(&consumer.text)) } }
                }
            } @else {
                div.pad { p.muted { "This server is part of a program, and was not started from a configuration." } }
            }
        }
        @if let Some(first) = config.consumers.first() {
            (cli_line::line("cli-config", &cli_line::command("check", &[("--effective", &first.name)], &[])))
        }
    }
}
