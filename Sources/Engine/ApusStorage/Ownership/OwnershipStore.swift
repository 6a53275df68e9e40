package import ApusCore

/// The store of the one value that all nodes must agree on: the cluster map (D4).
///
/// Every implementation fulfils this contract, which shared tests check:
/// - **Linearizable.** A read or a swap that begins after a swap has ended sees that swap.
/// - **Compare-and-swap.** A value is replaced only if its revision is the expected one. Of several swaps that expect
///   the same revision at most one succeeds.
/// - **Growing revisions.** Every swap gives the value a revision above all earlier ones; 0 stands for "no value yet".
/// - **Uncertain failures.** A swap that throws may have been made. Its caller reads before the next decision.
/// - **Durable.** A swap that was reported as made survives a crash of every process and of the machine.
/// - **One store.** Its identity is chosen at random when it is created. If another store takes its place, calls fail
///   with 10020.
///
/// A store cannot detect that it was rolled back. Its readers compare with what they saw before.
///
/// The store does not interpret the bytes. Errors: 10020 if it is another store or another cluster's, 10021 if it
/// cannot be read or written, 10006 if the task was cancelled. May be called from any task.
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

    /// Renews this incarnation's lease: the store shows it as held until the duration has passed without another
    /// renewal. A lease proves nothing about the node but that it reached the store. A store may count in whole
    /// seconds, and then ends a lease up to a second earlier or later.
    func renewLease(of node: NodeID, for duration: Duration) async throws(ApusError)

    /// The incarnations whose leases have not run out. At most ``OwnershipLimits/leaseCountMax``.
    func leaseHolders() async throws(ApusError) -> Set<NodeID>

    /// The revision of the value; 0 before the first swap. May be called ten times a second.
    func revision() async throws(ApusError) -> UInt64

    /// Reports changes of the value until the task is cancelled. A store that can only be polled returns at once.
    ///
    /// A report may come without a change, and one report may stand for several changes. After an interruption of the
    /// watch a change is reported late. The caller therefore also polls ``revision()``, at a low rate.
    ///
    /// - Parameter changed: Receives the revision, 0 if it is unknown. Called from any task; must not wait.
    func watch(_ changed: @escaping @Sendable (UInt64) -> Void) async

    /// Closes the store's connections. Later calls fail with 10021.
    func close() async
}

/// What a store does that can only be polled and has no connections.
extension OwnershipStore {
    package func watch(_ changed: @escaping @Sendable (UInt64) -> Void) async {}

    package func close() async {}
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

/// The limits of an ownership store.
package enum OwnershipLimits {
    /// The largest value, in bytes; a larger one is refused with 10002.
    package static let valueByteCountMax = 1 << 20
    /// The most leases that are read; those of nodes with later names are left out.
    package static let leaseCountMax = 1024
}
