package import ApusCore

/// The result of a write of an entity's state.
package enum KeepOutcome: Sendable, Equatable {
    /// With the new version.
    case confirmed(UInt64)
    /// A later write may confirm it.
    case unconfirmed(ApusError)
    /// The stored state differs from the writer's. 10009 if the write was certainly not made.
    case lost(ApusError)
}

extension KeepOutcome {
    /// The result of a change that the shard's replication accepted (``ReplicaService/Completion``).
    ///
    /// - Parameter version: of the state that was to be replaced.
    package init(replicated error: ApusError?, after version: UInt64) {
        switch error?.code {
        case nil: self = .confirmed(version + 1)
        case ErrorCode.deadlineExceeded?: self = .unconfirmed(ApusError(.deadlineExceeded))
        default: self = .lost(ApusError(.linkLost, "the shard left while a change was in flight"))
        }
    }

    /// The result of a change that the shard's replication refused: nothing was changed.
    package init(refused error: ApusError) { self = .lost(error.code == .staleEpoch ? ApusError(.moved) : error) }

    /// The result of a step of an entity's record (``EntityCollection``).
    package init(recorded result: Result<[UInt64], ApusError>) {
        switch result {
        // The first write is the check of the claim.
        case .success(let versions): self = .confirmed(versions.count > 1 ? versions[1] : 0)
        case .failure(let error):
            switch error.code {
            // Another owner wrote; nothing of this was written.
            case .staleEpoch, .versionConflict: self = .lost(ApusError(.moved))
            default: self = .lost(error)
            }
        }
    }
}
