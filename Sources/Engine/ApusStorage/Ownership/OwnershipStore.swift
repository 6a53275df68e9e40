package import ApusCore

/// Where the one value of the cluster stands that everybody must agree on: its map (D4).
///
/// The contract that every implementation keeps, and that the shared tests check:
/// - **Linearizable.** A read or a swap that begins after a swap has ended sees that swap.
/// - **Compare-and-swap.** A value is replaced only while its revision is the expected one; of several swaps that
///   expect the same revision at most one is made.
/// - **Revisions grow.** Every swap gives the value a revision above all earlier ones; 0 stands for "no value yet".
/// - **Uncertain failures.** A swap that throws may have been made. Whoever made it reads before the next decision.
/// - **Durable.** A swap that was reported as made survives a crash of every process and of the machine.
///
/// - **One store.** Its identity is drawn when it is made; where another store takes its place, calls fail with 10020.
///
/// A store that went back to an earlier state cannot notice it: whoever reads compares with what it saw before.
///
/// The store knows nothing of what the bytes mean. Errors: 10020 if it is another store or another cluster's, 10021
/// if it cannot be read or written, 10006 if the task was cancelled. May be called from any task.
package protocol OwnershipStore: Sendable {
    /// The identity of the store that was opened.
    var identity: StoreID { get }

    /// The value; nil before the first swap.
    func read() async throws(ApusError) -> OwnershipValue?

    /// Replaces the value if its revision is `expected`.
    ///
    /// - Parameter expected: 0 if there must be no value yet.
    /// - Returns: The new revision; nil if the store holds another than the expected one.
    func compareAndSwap(expected: UInt64, value: [UInt8]) async throws(ApusError) -> UInt64?

    /// The revision of the value; 0 before the first swap. Cheap enough to be asked ten times a second.
    func revision() async throws(ApusError) -> UInt64
}

/// A value with the revision that its swap gave it.
package struct OwnershipValue: Sendable, Equatable {
    package var revision: UInt64
    package var bytes: [UInt8]

    package init(revision: UInt64, bytes: [UInt8]) {
        self.revision = revision
        self.bytes = bytes
    }
}

/// The bounds of an ownership store.
package enum OwnershipLimits {
    /// The largest value, in bytes; a larger one is refused with 10002.
    package static let valueByteCountMax = 1 << 20
}
