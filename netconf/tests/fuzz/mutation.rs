//! Inputs that are almost valid. They get further into the decoders than random bytes.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn originals() -> [String; 2] {
    let result = json!({
        "cniVersion": "0.4.0",
        "interfaces": [{
            "name": "eth0", "mac": "ee:ee:ee:ee:ee:ee", "mtu": 1500, "sandbox": "/run/netns/x",
        }],
        "ips": [{
            "version": "4", "address": "10.0.0.7/32", "interface": 0, "gateway": "10.0.0.1",
        }],
        "ip4": { "ip": "10.0.0.7/32", "routes": [{ "dst": "::/0" }] },
        "routes": [{
            "dst": "10.0.0.7/26", "gw": "169.254.1.1", "mtu": 1, "table": 254, "scope": 253,
        }],
        "dns": { "nameservers": ["10.0.0.53"], "search": ["local"] },
    });
    let conf = json!({
        "name": "k8s-pod-network", "cniVersion": "1.1.0", "type": "calico", "mtu": 1410,
        "num_queues": 3, "qps": -1,
        "datastore_type": "etcdv3", "etcd_endpoints": "http://127.0.0.1:2379", "log_level": "error",
        "vxlan_vni": 4096,
        "ipam": {
            "type": "host-local", "assign_ipv4": "true", "ipv4_pools": ["10.0.0.0/16"],
            "routes": [{ "dst": "::/0" }],
        },
        "args": {
            "org.apache.mesos": {
                "network_info": { "labels": { "labels": [{ "key": "a", "value": "b" }] } }
            }
        },
        "dataplane_options": { "type": "grpc", "socket": "unix:///x" },
        "readiness_gates": ["http://x"],
        "prevResult": result,
        "cni.dev/valid-attachments": [{ "containerID": "c", "ifname": "eth0" }],
    });
    [conf.to_string(), result.to_string()]
}

pub(crate) fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..4u8, any::<u8>()), 0..6);
    (prop::sample::select(originals().to_vec()), edits).prop_map(|(text, edits)| {
        let mut bytes = text.into_bytes();
        for (index, edit, byte) in edits {
            let at = index.index(bytes.len());
            match edit {
                0 => bytes[at] = byte,
                1 => bytes[at] = b"{}[],:\"0-e\\"[usize::from(byte) % 11],
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, bytes[at]),
            }
        }
        bytes
    })
}

pub(crate) fn json_text() -> impl Strategy<Value = String> {
    let Ok(Value::Object(conf)) = serde_json::from_str(&originals()[0]) else {
        unreachable!("written above")
    };
    let Value::Object(result) = &conf["prevResult"] else {
        unreachable!("written above")
    };
    let keys: Vec<String> = conf
        .keys()
        .chain(result.keys())
        .cloned()
        .chain(["address".to_owned(), "dst".to_owned()])
        .collect();
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop_oneof![any::<String>(), "[0-9a-f./:]{0,12}"].prop_map(Value::from),
    ];
    let tree = leaf.prop_recursive(5, 40, 6, move |inner| {
        let key = prop_oneof![8 => prop::sample::select(keys.clone()), 1 => any::<String>()];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..6)
                .prop_map(|entries| Value::Object(Map::from_iter(entries))),
        ]
    });
    tree.prop_map(|mut value| {
        if let Value::Object(map) = &mut value {
            map.insert("name".to_owned(), json!("net"));
        }
        value.to_string()
    })
}
