use super::*;

fn entry(path: &str, value: &[u8]) -> RawEntry {
    RawEntry { path: path.into(), value: value.into(), revision: Revision("7".into()) }
}

fn round_trip(value: &[u8]) -> String {
    let line = serde_json::to_string(&line_of(&entry("/calico/k", value))).unwrap();
    assert!(!line.contains('\n'), "{line}");
    assert_eq!(parse_line(&line), Ok(("/calico/k".into(), value.to_vec())), "{line}");
    line
}

#[test]
fn values_survive_byte_for_byte() {
    assert_eq!(round_trip(br#"{"b":1,  "a":1.50}"#), r#"{"key":"/calico/k","value":{"b":1,  "a":1.50}}"#);
    assert!(round_trip(b"{\"a\":\n1}").contains("\"text\""));
    assert!(round_trip(b" {}").contains("\"text\""));
    assert!(round_trip(b"").contains("\"text\""));
    assert!(round_trip(b"null").contains("\"text\":\"null\""));
    assert!(round_trip(b"\xff\x00").contains("\"base64\""));
}

#[test]
fn damaged_files_are_refused_with_the_place() {
    let header = r#"{"format":"calico-export","version":1,"pairs":1}"#;
    let pair = r#"{"key":"/calico/k","value":1}"#;
    let refuse = |text: String| parse(text.as_bytes()).unwrap_err().to_string();
    assert!(parse(format!("{header}\n{pair}\n").as_bytes()).is_ok());
    assert!(refuse(header.into()).contains("should hold 1 pairs and holds 0"));
    assert!(refuse(String::new()).contains("first line must be its header"));
    assert!(refuse(header.replace(":1,", ":2,")).contains("version 2"));
    assert!(refuse(format!("{header}\n{}", pair.replace("/calico", ""))).starts_with("line 2: key `/k` is not below"));
    assert!(refuse(format!("{header}\n{pair}\n{pair}")).starts_with("line 3: /calico/k is there twice"));
    assert!(refuse(format!("{header}\n{{\"key\":\"/calico/k\"}}")).contains("exactly one of"));
}

#[test]
fn existing_pairs_are_kept_unless_told_or_initial() {
    let wanted = |path: &str| BTreeMap::from([(path.to_owned(), b"new".to_vec())]);
    let found = |path: &str| BTreeMap::from([(path.to_owned(), entry(path, b"old"))]);
    let refused = plan(wanted("/calico/k"), &found("/calico/k"), Existing::Keep).unwrap_err();
    assert!(matches!(refused, TransferError::Occupied { count: 1, .. }));
    let (writes, imported) = plan(wanted("/calico/k"), &found("/calico/k"), Existing::Overwrite).unwrap();
    assert_eq!(writes[0].op, WriteOp::Update(b"new".to_vec(), Revision("7".into())));
    assert_eq!(imported, Imported { replaced: 1, ..Imported::default() });
    let tier = "/calico/resources/v3/projectcalico.org/tiers/default";
    assert_eq!(plan(wanted(tier), &found(tier), Existing::Keep).unwrap().1.replaced, 1);
}

#[test]
fn batches_keep_order_and_limits() {
    let of_size = |bytes| write("/calico/k".into(), WriteOp::Create(vec![b'x'; bytes]));
    let sizes = |writes: &[Write]| batches(writes).map(<[Write]>::len).collect::<Vec<_>>();
    assert_eq!(sizes(&vec![of_size(1); 250]), [100, 100, 50]);
    assert_eq!(sizes(&vec![of_size(BATCH_BYTES / 2); 3]), [1, 1, 1]);
    assert_eq!(sizes(&[of_size(BATCH_BYTES * 2), of_size(1)]), [1, 1]);
    assert_eq!(sizes(&[]), [0; 0]);
}
