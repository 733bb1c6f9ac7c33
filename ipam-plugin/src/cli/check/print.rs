//! Prints the result of `check` as sentences.

use super::listing::ListedAddress;
use super::{CheckResult, ReadCounts};
use crate::cli::app::App;
use crate::cli::cluster_read::UnreadableObject;
use crate::cli::error::CliError;

impl CheckResult {
    pub(super) fn print(&self, app: &mut App<'_>) -> Result<(), CliError> {
        let ReadCounts {
            pools,
            blocks,
            addresses,
            handles,
            endpoints,
        } = self.looked_at;
        app.print_line(format_args!(
            "{pools} pools, {blocks} blocks, {addresses} addresses in use, {handles} handles, \
             {endpoints} endpoints"
        ))?;
        print_addresses(self.addresses.as_deref().unwrap_or_default(), app)?;
        for finding in &self.findings {
            app.print_line(finding)?;
        }
        for UnreadableObject { key, reason } in &self.unreadable {
            app.print_line(format_args!("unreadable: {key}: {reason}"))?;
        }
        for note in &self.notes {
            app.print_line(format_args!("note: {note}"))?;
        }
        for unchecked in &self.unchecked {
            app.print_line(format_args!("note: {unchecked}"))?;
        }
        match self.findings.len() + self.unreadable.len() {
            0 => app.print_line("nothing is wrong"),
            1 => app.print_line("1 thing is wrong"),
            n => app.print_line(format_args!("{n} things are wrong")),
        }
    }
}

/// Prints each address below its block.
fn print_addresses(addresses: &[ListedAddress], app: &mut App<'_>) -> Result<(), CliError> {
    let mut above = None;
    for listed in addresses {
        if above != Some(listed.block) {
            let affinity = listed.affinity.as_deref().unwrap_or("<none>");
            app.print_line(format_args!(
                " IPAM block {} affinity={affinity}:",
                listed.block
            ))?;
            above = Some(listed.block);
        }
        app.print_line(format_args!(
            "  {} allocated; attrs {}",
            listed.address,
            listed.describe()
        ))?;
    }
    Ok(())
}
