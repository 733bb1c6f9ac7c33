//! Garbage collection on real servers.

mod blocks;
mod claims;
mod flannel;
mod killed;
mod lab;
mod leaks;
mod machines;
mod nodes;
mod pools;
mod requests;
mod reused;
mod swallowed;
mod telling;

/// Turns each named function, `fn(&Lab)`, into one test with Calico's objects in etcd and one with custom resources.
macro_rules! on_each_datastore {
    ($($test:ident),* $(,)?) => {
        mod etcd {
            $(#[test] fn $test() { $crate::lab::on(None, super::$test) })*
        }
        mod custom_resources {
            $(#[test] fn $test() { $crate::lab::on(Some(libcalico::kubernetes::ApiGroup::CrdV1), super::$test) })*
        }
    };
}
pub(crate) use on_each_datastore;
