use crate::FabricError;

/// Whether there is such a rank among so many.
pub(crate) fn check(rank: u32, ranks: u32) -> Result<(), FabricError> {
    if rank < ranks { Ok(()) } else { Err(FabricError::NoSuchRank { rank, ranks }) }
}

/// The place of a rank among the members of a group that it builds.
pub(crate) fn place_among(members: &[u32], own: u32, ranks: u32) -> Result<usize, FabricError> {
    for (place, &rank) in members.iter().enumerate() {
        check(rank, ranks)?;
        if members[..place].contains(&rank) {
            return Err(FabricError::RepeatedMember { members: members.to_vec(), rank });
        }
    }
    let place = members.iter().position(|&rank| rank == own);
    place.ok_or_else(|| FabricError::NotAMember { members: members.to_vec(), rank: own })
}
