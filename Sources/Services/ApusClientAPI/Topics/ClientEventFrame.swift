import ApusContract
package import ApusCore
package import ApusSessions
import Foundation
package import NIOCore
import SwiftProtobuf
import Synchronization

/// An event on its way to clients: encoded once in each encoding, however many clients receive it.
///
/// Isolation: immutable but for what was written already, behind a `Mutex`.
package final class ClientEventFrame: Sendable {
    private struct Written {
        var binary: ByteBuffer?
        var json: ByteBuffer?
    }

    /// Empty for an event of an identity.
    package let topic: String
    package let type: UInt32
    package let message: [UInt8]
    /// Where it stands in its topic; nil where the topic keeps nothing.
    package let position: TopicPosition?
    /// Events before it are lost: its position is not the next one.
    package let missed: Bool
    /// Something that should have been an event before it never was one. For clients both are `missed`.
    package let isAfterGap: Bool
    private let written = Mutex(Written())

    package init(
        topic: String, type: UInt32, message: [UInt8], position: TopicPosition? = nil, missed: Bool = false,
        isAfterGap: Bool = false
    ) {
        (self.topic, self.type, self.message) = (topic, type, message)
        (self.position, self.missed, self.isAfterGap) = (position, missed, isAfterGap)
    }

    /// The text of the cursor after this event.
    package var cursor: String { position.map { TopicPosition(log: $0.log, next: $0.next + 1).text } ?? "" }

    /// As the native protocol has it: a `ClientEvent`.
    package func binary() -> ByteBuffer {
        written.withLock { written in
            if let binary = written.binary { return binary }
            let event = ClientEvent.with {
                ($0.topic, $0.type, $0.message) = (topic, type, Data(message))
                ($0.cursor, $0.missed) = (cursor, missed || isAfterGap)
            }
            let bytes: [UInt8] = (try? event.serializedBytes()) ?? []
            let buffer = ByteBuffer(bytes: bytes)
            written.binary = buffer
            return buffer
        }
    }

    /// As WebSocket has it: `{"event":{"topic":…,"type":…,"message":{…},"cursor":…}}`.
    ///
    /// - Parameter kind: of its number; nil leaves the message out.
    package func json(_ kind: ClientEventKind?) -> ByteBuffer {
        written.withLock { written in
            if let json = written.json { return json }
            var fields: [(String, JSON)] = []
            if !topic.isEmpty { fields.append(("topic", .string(topic))) }
            fields.append(("type", .string(kind?.info.name ?? "\(type)")))
            if let text = kind?.json(message) { fields.append(("message", .raw(text))) }
            if position != nil { fields.append(("cursor", .string(cursor))) }
            if missed || isAfterGap { fields.append(("missed", .bool(true))) }
            let buffer = ByteBuffer(string: JSON.object([("event", .object(fields))]).text)
            written.json = buffer
            return buffer
        }
    }
}

extension ClientEventFrame {
    package static func presence(_ device: DeviceID, _ presence: Presence) -> ClientEventFrame {
        let message = ClientPresence.with {
            $0.device = device.rawValue
            $0.online = presence.online.rawValue
            $0.time = presence.time
        }
        return ClientEventFrame(
            topic: "presence/\(device.rawValue)", type: ClientPresence.info.number,
            message: (try? message.serializedBytes()) ?? [])
    }
}

extension TopicPosition {
    /// As clients see it; they do not read it.
    package var text: String { String(log, radix: 16) + "." + String(next, radix: 16) }

    /// Throws 21031 where the text is no cursor.
    package init?(cursor: String) throws(ApusError) {
        guard !cursor.isEmpty else { return nil }
        let parts = cursor.split(separator: ".", omittingEmptySubsequences: false)
        guard parts.count == 2, let log = UInt64(parts[0], radix: 16), let next = UInt64(parts[1], radix: 16),
            next <= UInt64.max / 2
        else { throw ApusError(.badParameter, "the cursor is not one of this cluster") }
        self.init(log: log, next: next)
    }
}
