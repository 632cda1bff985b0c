//! The sizes and the memory order of a tensor.
//!
//! Rank 4. Part of `pte`.

use crate::pte::fault::{Fallible, Fault};
use crate::pte::schema::Tensor;
use crate::pte::vector::Ints;
use crate::pte::warning::WarningKind;
use crate::scalar::ScalarType;
use crate::shape::TensorSpec;

/// Checks the sizes and the memory order, and returns the size in bytes.
#[inline]
pub(super) fn size_in_bytes(
    tensor: &Tensor<'_>,
    scalar_type: ScalarType,
) -> Fallible<(usize, Option<WarningKind>)> {
    let Some(sizes) = tensor.sizes()? else {
        return Err(Fault::new("sizes", format_args!("a tensor has no sizes")));
    };
    let rank = sizes.len();
    if rank > TensorSpec::MAX_RANK {
        return Err(Fault::new(
            "sizes",
            format_args!("{rank} dimensions, more than {}", TensorSpec::MAX_RANK),
        ));
    }
    let mut product = scalar_type.size();
    for size in sizes.iter() {
        let Ok(size) = usize::try_from(size) else {
            return Err(negative(sizes));
        };
        product = product.saturating_mul(size);
    }
    check_dim_order(tensor, rank)?;
    match isize::try_from(product) {
        Ok(0) => Ok((0, oddity_of_empty(sizes, scalar_type))),
        Ok(_) => Ok((product, None)),
        Err(_) => Err(too_large(sizes, scalar_type)),
    }
}

/// What is odd about an empty tensor with `sizes`.
#[cold]
#[inline(never)]
fn oddity_of_empty(sizes: Ints<'_>, scalar_type: ScalarType) -> Option<WarningKind> {
    let others = sizes.iter().filter_map(|size| usize::try_from(size).ok());
    let product = others
        .filter(|&size| size != 0)
        .fold(scalar_type.size(), usize::saturating_mul);
    isize::try_from(product)
        .is_err()
        .then_some(WarningKind::OversizedEmpty)
}

#[cold]
#[inline(never)]
fn negative(sizes: Ints<'_>) -> Fault {
    let dimension = sizes.iter().take_while(|&size| size >= 0).count();
    let size = sizes.get(dimension).unwrap_or_default();
    Fault::new(
        "sizes",
        format_args!("negative size {size} of dimension {dimension}"),
    )
}

#[cold]
#[inline(never)]
fn too_large(sizes: Ints<'_>, scalar_type: ScalarType) -> Fault {
    let sizes: Vec<i32> = sizes.iter().collect();
    Fault::new(
        "sizes",
        format_args!("{sizes:?} of {scalar_type} are more bytes than can be addressed"),
    )
}

/// Checks that the memory order names each of `rank` dimensions once.
#[inline]
fn check_dim_order(tensor: &Tensor<'_>, rank: usize) -> Fallible<()> {
    let Some(order) = tensor.dim_order()? else {
        return Err(Fault::new(
            "dim_order",
            format_args!("a tensor has no dim order"),
        ));
    };
    if order.len() != rank {
        return Err(Fault::new(
            "dim_order",
            format_args!("{} entries for {rank} dimensions", order.len()),
        ));
    }
    let mut dimensions = order.iter().zip(0_u8..);
    if dimensions.all(|(&named, dimension)| named == dimension) || is_permutation(order) {
        Ok(())
    } else {
        Err(no_permutation(order))
    }
}

/// Whether `order` names each of its positions once, which it does if it names all.
#[inline(never)]
fn is_permutation(order: &[u8]) -> bool {
    let named = order.iter().fold(0_u32, |named, &dimension| {
        named | 1_u32.checked_shl(u32::from(dimension)).unwrap_or(0)
    });
    let rank = u32::try_from(order.len()).unwrap_or(u32::MAX);
    u32::MAX.checked_shl(rank) == Some(!named)
}

#[cold]
#[inline(never)]
fn no_permutation(order: &[u8]) -> Fault {
    let rank = order.len();
    Fault::new(
        "dim_order",
        format_args!("{order:?} is no permutation of {rank} dimensions"),
    )
}

#[cfg(test)]
mod tests {
    use super::is_permutation;

    #[test]
    fn a_permutation_names_each_position_once() {
        let sixteen: Vec<u8> = (0..16).rev().collect();
        for order in [[].as_slice(), &[0], &[1, 0], &[0, 2, 1], &sixteen] {
            assert!(is_permutation(order), "{order:?}");
        }
        for order in [[1].as_slice(), &[0, 0], &[0, 2], &[1, 32], &[0, 255]] {
            assert!(!is_permutation(order), "{order:?}");
        }
    }
}
