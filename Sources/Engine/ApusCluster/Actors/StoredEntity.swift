package import ApusCore
import ApusWire
import Foundation
import SwiftProtobuf

/// Everything of an entity that outlives its activation: the service's state, the stored answers and the reminders
/// (D15).
///
/// It is replicated, handed over and recorded as a unit, so a request's changes, its answer and its reminders are never
/// separated.
package struct StoredEntity: Sendable, Equatable {
    /// The service's own message, encoded.
    package var content: [UInt8]
    package var memory: RequestMemory
    package var reminders: [Reminder]

    package init(content: [UInt8], memory: RequestMemory, reminders: [Reminder] = []) {
        self.content = content
        self.memory = memory
        self.reminders = reminders
    }

    /// Encodes the state. Throws 10018 if that fails, which proto3 messages do not.
    package func encoded() throws(ApusError) -> [UInt8] {
        let message = EntityState.with { state in
            state.content = Data(content)
            state.answered = memory.carried.map { id, answer in
                .with {
                    ($0.idHigh, $0.idLow) = (id.high, id.low)
                    switch answer {
                    case .reply(let bytes): $0.reply = Data(bytes)
                    case .failure(let code, let message):
                        $0.failure.code = code
                        $0.failure.message = message
                    case .notKept: break
                    }
                }
            }
            state.reminders = reminders.map { reminder in
                .with {
                    $0.name = reminder.name
                    ($0.idHigh, $0.idLow) = (reminder.id.high, reminder.id.low)
                    $0.due = reminder.due
                    $0.payload = Data(reminder.payload)
                }
            }
        }
        do {
            return try message.serializedBytes()
        } catch {
            throw ApusError(.internalFailure, "an entity's state cannot be encoded")
        }
    }

    /// Decodes what ``encoded()`` returned.
    ///
    /// - Throws: 10001 for anything else. Answers over the limits are dropped, the oldest first.
    package init(
        reading bytes: [UInt8], of address: EntityAddress, configuration: RequestMemory.Configuration = .init()
    ) throws(ApusError) {
        guard let message = try? EntityState(serializedBytes: bytes) else {
            throw ApusError(.malformed, "an entity's state cannot be read")
        }
        let carried = message.answered.map { request -> (id: RequestID, answer: RequestMemory.Answer) in
            let answer: RequestMemory.Answer =
                switch request.answer {
                case .reply(let bytes): .reply([UInt8](bytes))
                case .failure(let failure): .failure(code: failure.code, message: failure.message)
                case nil: .notKept
                }
            return (RequestID(high: request.idHigh, low: request.idLow), answer)
        }
        self.init(
            content: [UInt8](message.content), memory: RequestMemory(configuration: configuration, carried: carried),
            reminders: message.reminders.map { reminder in
                Reminder(
                    entity: address, name: reminder.name, id: RequestID(high: reminder.idHigh, low: reminder.idLow),
                    due: reminder.due, payload: [UInt8](reminder.payload))
            })
    }

    /// True if the encoded state holds a reminder. Nothing else is decoded. False if the bytes are not a state.
    ///
    /// All fields of the message are length-delimited: tags and lengths are read, contents are skipped.
    package static func hasReminders(_ bytes: some Collection<UInt8>) -> Bool {
        var rest = bytes[...]
        while let tag = rest.popFirst() {
            guard tag & 7 == 2 else { return false }
            guard tag >> 3 != 3 else { return true }
            var (length, shift) = (0, 0)
            var isMore = true
            while isMore {
                guard let byte = rest.popFirst(), shift < 35 else { return false }
                length |= Int(byte & 0x7f) << shift
                shift += 7
                isMore = byte & 0x80 != 0
            }
            guard length <= rest.count else { return false }
            rest = rest.dropFirst(length)
        }
        return false
    }
}
