//! Prints the addresses that nodes use from blocks of other owners.

use libcalico::ipam::{Block, Borrowings, borrowed};
use libcalico::store::Store;

use crate::cli::app::App;
use crate::cli::documents;
use crate::cli::error::CliError;

pub(super) async fn show(app: &mut App<'_>) -> Result<(), CliError> {
    let progress = app.progress("reading blocks");
    let blocks = app.store.list::<Block>(&None).await?;
    drop(progress);
    let found = borrowed(blocks.iter().map(|entry| &entry.value));
    if documents::print_document(app.format, app.out, &found)? {
        return Ok(());
    }
    // The columns are those of calicoctl.
    let header = [
        "IP",
        "BORROWING-NODE",
        "BLOCK",
        "BLOCK OWNER",
        "TYPE",
        "ALLOCATED-TO",
    ];
    let mut table = documents::new_table(header);
    let Borrowings { rows, without_node } = found;
    for row in rows {
        let cells = [
            row.address.to_string(),
            row.node,
            row.block.to_string(),
            row.block_owner,
            row.kind,
            row.allocated_to,
        ];
        table.add_row(cells.map(documents::table_cell));
    }
    documents::print_table(app.out, &table)?;
    if without_node > 0 {
        app.notice(note(without_node));
    }
    Ok(())
}

/// Returns the note about allocations that may be borrowed or not.
fn note(without_node: usize) -> String {
    // Upstream's text.
    format!(
        "Note: found {without_node} IP allocations without an explicit node association. Unable to \
         determine if they are borrowed."
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::cli::testing::Shell;

    #[test]
    fn borrowed_addresses_with_a_missing_attribute_are_shown() {
        let shell = Shell::with_pool();
        shell.put(
            "/calico/ipam/v2/assignment/ipv4/block/10.0.0.8-30",
            r#"{"cidr":"10.0.0.8/30","affinity":"host:node1","allocations":[0,7,null,null],"unallocated":[2,3],
                "attributes":[{"handle_id":"h","secondary":{"node":"node2","namespace":"ns","pod":"web"}}]}"#,
        );
        let ran = shell.run(&["show", "--show-borrowed"]);
        let row =
            "| 10.0.0.8 | node2          | 10.0.0.8/30 | node1       | pod  | ns/web       |\n";
        assert!(ran.out.contains(row), "{}", ran.out);
        assert!(
            ran.notices
                .starts_with("Note: found 1 IP allocations without"),
            "{}",
            ran.notices
        );
        let shown = shell.json(&["show", "--show-borrowed"]);
        assert_eq!(
            (&shown["withoutNode"], &shown["addresses"][0]["allocatedTo"]),
            (&json!(1), &json!("ns/web"))
        );
    }

    #[test]
    fn borrowed_addresses_of_an_empty_datastore_are_an_empty_table() {
        let table = "\
+----+----------------+-------+-------------+------+--------------+
| IP | BORROWING-NODE | BLOCK | BLOCK OWNER | TYPE | ALLOCATED-TO |
+----+----------------+-------+-------------+------+--------------+
+----+----------------+-------+-------------+------+--------------+
";
        assert_eq!(Shell::new().ok(&["show", "--show-borrowed"]), table);
    }
}
