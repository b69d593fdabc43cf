//! Fetches and prints paged lists in each format.

use clap::Args;
use lazaret_api::{
    AuditEntry, AuditPage, Group, GroupPage, Item, ItemPage, Letter, LetterPage, Operation, OperationPage,
};
use serde::Serialize;

use crate::context::Context;
use crate::error::Result;
use crate::output::{Format, Record, csv_header, print_page};

/// The default size of a table or a JSON page.
const DEFAULT_LIMIT: usize = 50;
/// The most records that are requested at once (I7).
const MAX_PAGE: usize = 500;

/// The paging options of a list.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Paging {
    /// Limit the number of results; default: 50 in tables and JSON, unlimited in JSON lines and CSV
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,

    /// Continue after the cursor of the previous page
    #[arg(long, value_name = "CURSOR")]
    pub after: Option<String>,
}

/// A page of records.
pub(crate) trait Page: Serialize {
    /// The record type.
    type Item: Record;
    /// Returns the records.
    fn items(&mut self) -> &mut Vec<Self::Item>;
    /// Returns the cursor of the next page.
    fn next(&mut self) -> &mut Option<String>;
}

macro_rules! pages {
    ($($page:ident { $items:ident: $item:ident }),+) => {
        $(impl Page for $page {
            type Item = $item;
            fn items(&mut self) -> &mut Vec<$item> {
                &mut self.$items
            }
            fn next(&mut self) -> &mut Option<String> {
                &mut self.next
            }
        })+
    };
}

pages! {
    LetterPage { letters: Letter },
    GroupPage { groups: Group },
    OperationPage { operations: Operation },
    ItemPage { items: Item },
    AuditPage { entries: AuditEntry }
}

/// The result of printing a list.
pub(crate) struct Listed<R> {
    /// The records; empty for formats that print line by line.
    pub records: Vec<R>,
    /// `true` if nothing was found from the start.
    pub nothing: bool,
    /// The cursor of the next page, if there is more.
    pub next: Option<String>,
}

/// Prints a list: one page as a table or JSON, or every record line by line. `keep` filters the records.
///
/// # Errors
/// When it cannot be fetched or written.
pub(crate) async fn print_list<P: Page>(
    context: &Context,
    paging: &Paging,
    fetch: impl AsyncFn(Option<String>, usize) -> Result<P>,
    keep: impl Fn(&P::Item) -> bool,
) -> Result<Listed<P::Item>> {
    let limit = paging.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    match context.format() {
        Format::Table | Format::Json => {
            let mut page =
                gather(paging.after.clone(), limit.unwrap_or(DEFAULT_LIMIT), &fetch, &keep).await?;
            // An empty table is left out: the message that follows says it.
            if context.format() == Format::Json || !page.items().is_empty() {
                print_one(context, &mut page)?;
            }
            let nothing = paging.after.is_none() && page.items().is_empty();
            Ok(Listed { next: page.next().take(), records: std::mem::take(page.items()), nothing })
        }
        format => {
            let (printed, next) =
                print_all(context, format, paging.after.clone(), limit, &fetch, &keep).await?;
            Ok(Listed { records: Vec::new(), next, nothing: paging.after.is_none() && printed == 0 })
        }
    }
}

fn print_one<P: Page>(context: &Context, page: &mut P) -> Result<()> {
    if context.format() == Format::Json {
        return context.screen.json(page);
    }
    print_page(&context.screen, Format::Table, &(), page.items(), context.now())
}

/// Fetches one page of the wanted size. The server may return short pages, as it inspects a bounded number of letters for each.
async fn gather<P: Page>(
    after: Option<String>,
    limit: usize,
    fetch: &impl AsyncFn(Option<String>, usize) -> Result<P>,
    keep: &impl Fn(&P::Item) -> bool,
) -> Result<P> {
    let mut page = fetch(after, limit.min(MAX_PAGE)).await?;
    page.items().retain(keep);
    while page.items().len() < limit {
        let Some(after) = page.next().take() else { break };
        let wanted = (limit - page.items().len()).min(MAX_PAGE);
        let mut more = fetch(Some(after), wanted).await?;
        more.items().retain(keep);
        page.items().append(more.items());
        *page.next() = more.next().take();
    }
    Ok(page)
}

async fn print_all<P: Page>(
    context: &Context,
    format: Format,
    mut after: Option<String>,
    limit: Option<usize>,
    fetch: &impl AsyncFn(Option<String>, usize) -> Result<P>,
    keep: &impl Fn(&P::Item) -> bool,
) -> Result<(usize, Option<String>)> {
    let mut printed = 0;
    loop {
        let wanted = limit.map_or(MAX_PAGE, |limit| (limit - printed).min(MAX_PAGE));
        let mut page = fetch(after, wanted).await?;
        for record in page.items().iter().filter(|record| keep(record)) {
            record.print_line(&context.screen, format, printed == 0)?;
            printed += 1;
        }
        after = page.next().take();
        if after.is_none() || limit.is_some_and(|limit| printed >= limit) {
            break;
        }
    }
    if printed == 0 && format == Format::Csv {
        context.screen.raw(format!("{}\n", csv_header(P::Item::CSV)).as_bytes())?;
    }
    Ok((printed, after))
}
