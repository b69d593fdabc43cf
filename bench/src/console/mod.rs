//! The group `console`: pages over a million letters, what a browser loads, live updates, and a consumer beside viewers.

mod beside;
mod first_view;
mod live;
mod processor;
mod screens;
mod site;
mod viewers;

use std::time::Instant;

use crate::Scale;
use crate::embedded::disk::Disk;
use crate::table::Row;
use site::Site;

const BENCH: &str = "console";
/// The people who look at pages at once.
const VIEWERS: usize = 20;

/// The benchmarks of the group, in order.
pub(crate) const NAMES: [&str; 4] = ["screens", "first-view", "live", "beside"];

/// Runs every benchmark of the group, or only the given one, on one site.
pub(crate) async fn run(scale: Scale, only: Option<&str>) -> Result<Vec<Row>, String> {
    let disk = Disk::find()?;
    let site = Site::start(scale, &disk).await;
    let mut rows = Vec::new();
    for name in NAMES.into_iter().filter(|name| only.is_none_or(|only| only == *name)) {
        eprintln!("running {name}");
        let started = Instant::now();
        rows.extend(match name {
            "screens" => screens::run(scale, &site).await,
            "first-view" => first_view::run(&site).await?,
            "live" => live::run(scale, &site).await,
            "beside" => beside::run(scale, &site).await,
            _ => unreachable!("every name has its benchmark"),
        });
        eprintln!("{name} took {:.0} s", started.elapsed().as_secs_f64());
    }
    site.stop().await;
    Ok(rows)
}
