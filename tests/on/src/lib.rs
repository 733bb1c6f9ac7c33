//! The attribute [`macro@on`].

use proc_macro::TokenStream;
use quote::{format_ident, quote};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::{Ident, ItemFn, Token, parse_macro_input};

/// Makes a test of a function for each named datastore: `etcd`, `local` (the embedded one),
/// `kubernetes_v1` (an API server with `crd.projectcalico.org/v1`), `kubernetes_v3` (an API server
/// with `projectcalico.org/v3`).
///
/// ```text
/// use integration_tests::cluster::{Cluster, on};
///
/// #[on(etcd, local)]
/// fn del_of_an_unknown_container_succeeds(cluster: &Cluster<'_>) {}
/// ```
///
/// These are the tests `del_of_an_unknown_container_succeeds::etcd` and
/// `del_of_an_unknown_container_succeeds::local`. Each calls the function `on` that the file
/// imports, with an `integration_tests::Place` and the function.
#[proc_macro_attribute]
pub fn on(places: TokenStream, function: TokenStream) -> TokenStream {
    let function = parse_macro_input!(function as ItemFn);
    let places = match Punctuated::<Ident, Token![,]>::parse_terminated.parse(places) {
        Ok(places) if !places.is_empty() => places,
        Ok(_) => {
            let error = syn::Error::new_spanned(&function.sig.ident, "#[on()] names no datastore");
            return error.into_compile_error().into();
        }
        Err(error) => return error.into_compile_error().into(),
    };
    let name = &function.sig.ident;
    let tests = places.iter().map(|place| {
        let variant = format_ident!("{}", camel_case(&place.to_string()), span = place.span());
        quote! {
            #[test]
            fn #place() {
                super::on(::integration_tests::Place::#variant, super::#name)
            }
        }
    });
    quote! {
        #function

        mod #name {
            #(#tests)*
        }
    }
    .into()
}

/// Returns the name of a variant, for example `KubernetesV1` for `kubernetes_v1`.
fn camel_case(name: &str) -> String {
    name.split('_')
        .map(|word| {
            let (first, rest) = word.split_at(word.len().min(1));
            first.to_uppercase() + rest
        })
        .collect()
}
