/// The limits of a record store that are not configurable (D13).
package enum RecordLimits {
    /// The longest key, and the longest entry of an index, in bytes. Beyond it: 10002.
    package static let keyByteCountMax = 256
    /// The longest name of a collection or an index, in bytes.
    package static let nameByteCountMax = 64
    /// The most entries of one record in all its indexes. Beyond it: 10002.
    package static let entryCountMax = 32
    /// The most writes of one step. Beyond it: 10002.
    package static let writeCountMax = 128
    /// The longest writer id, in bytes.
    package static let writerByteCountMax = 96
    /// The most records of one page, and of one read of several keys.
    package static let pageCountMax = 1000
    /// A page ends after the record that makes it longer than this, in bytes.
    package static let pageByteCountMax = 4 << 20
}

/// The limits of a record store that the configuration sets (D13).
package struct RecordStoreLimits: Sendable, Equatable {
    /// The longest body of one record, in bytes. A longer one is refused with 10002.
    package var bodyByteCountMax = 256 << 10
    /// Steps that wait for a commit. A further one is refused with 10007.
    package var waitingStepCountMax = 8192
    /// Bytes of the steps that wait for a commit. A step beyond them is refused with 10007.
    package var waitingByteCountMax = 64 << 20
    /// Steps of one commit.
    package var batchStepCountMax = 256

    package init() {}
}
