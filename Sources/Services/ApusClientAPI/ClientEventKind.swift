package import ApusContract
import SwiftProtobuf

/// A kind of event, whatever its message.
package struct ClientEventKind: Sendable {
    package let info: ClientEventInfo
    /// The full name of its message.
    package let messageName: String
    /// The message's JSON form of its binary form; nil where it cannot be read.
    package let json: @Sendable ([UInt8]) -> String?

    package init<M: ClientEventMessage>(_ type: M.Type) {
        info = M.info
        messageName = M.protoMessageName
        json = { bytes in try? M(serializedBytes: bytes).jsonString(options: clientJSON) }
    }
}
