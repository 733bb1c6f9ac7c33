//! [`Watches`]: the watches of the process, one for each kind of object.

use datastore::watch::Watcher;
use libcalico::api::Node as CalicoNode;
use libcalico::api::{HostEndpoint, IpPool, IpReservation, KubeControllersConfiguration, Tier, WorkloadEndpoint};
use libcalico::ipam::Block;
use libcalico::store::Entry;

use super::handler::Subscribers;
use super::running::{RunningWatches, follow};
use super::source::source;
use crate::context::Context;
use crate::watched::{
    Namespace, NetworkPolicy, Node, Pod, ProjectionOptions, Service, ServiceAccount, WatchedVm, WatchedVmi,
};

/// Declares one watch per line. Watches of Kubernetes kinds deliver a projection; watches of Calico's kinds deliver
/// whole objects.
macro_rules! watches {
    (
        kubernetes { $($(#[$native_doc:meta])* $native:ident: $projection:ty,)* }
        calico { $($(#[$calico_doc:meta])* $calico:ident: $kind:ty,)* }
    ) => {
        /// The watches to which controllers can subscribe.
        #[derive(Default)]
        pub struct Watches {
            /// Optional parts of the projections. A controller that needs one requests it when it subscribes.
            pub options: ProjectionOptions,
            $($(#[$native_doc])* pub $native: Subscribers<$projection>,)*
            $($(#[$calico_doc])* pub $calico: Subscribers<Entry<$kind>>,)*
        }

        impl Watches {
            /// Starts the watches that have event handlers. The watches end with `context.stop`.
            pub fn start(self, context: &Context) -> RunningWatches {
                let mut running = RunningWatches::default();
                $(if self.$native.has_subscribers() {
                    let watch = Watcher::new(source::<$projection>(context, self.options));
                    let meter = watch.stats();
                    running.add(self.$native, meter, |subscribers| follow(watch, subscribers, context.clone()));
                })*
                $(if self.$calico.has_subscribers()
                    && let Some(watch) = context.calico.watch::<$kind>(&Default::default())
                {
                    let meter = watch.stats();
                    running.add(self.$calico, meter, |subscribers| follow(watch, subscribers, context.clone()));
                })*
                running
            }
        }
    };
}

watches! {
    kubernetes {
        /// Pods.
        pods: Pod,
        /// Nodes.
        nodes: Node,
        /// Namespaces.
        namespaces: Namespace,
        /// Service accounts.
        service_accounts: ServiceAccount,
        /// Network policies.
        network_policies: NetworkPolicy,
        /// Services.
        services: Service,
        /// KubeVirt's VirtualMachines, if KubeVirt is installed.
        machines: WatchedVm,
        /// KubeVirt's VirtualMachineInstances (VMIs), if KubeVirt is installed.
        machine_instances: WatchedVmi,
    }
    calico {
        /// Blocks.
        blocks: Block,
        /// IP pools.
        ip_pools: IpPool,
        /// Reservations.
        ip_reservations: IpReservation,
        /// Calico's nodes.
        calico_nodes: CalicoNode,
        /// Host endpoints.
        host_endpoints: HostEndpoint,
        /// Tiers.
        tiers: Tier,
        /// Configurations of kube-controllers.
        configurations: KubeControllersConfiguration,
        /// Workload endpoints (etcd only).
        workload_endpoints: WorkloadEndpoint,
    }
}
