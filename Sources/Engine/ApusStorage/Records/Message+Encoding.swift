package import SwiftProtobuf

extension Message where Self: Equatable {
    /// True if the messages are encoded alike. `==` is also true for messages whose texts differ only in their Unicode
    /// normalization.
    ///
    /// The messages are encoded only if they are equal. False if one of them cannot be encoded.
    package func isEncoded(like other: Self) -> Bool {
        guard self == other, let own: [UInt8] = try? serializedBytes(),
            let others: [UInt8] = try? other.serializedBytes()
        else { return false }
        return own == others
    }
}
