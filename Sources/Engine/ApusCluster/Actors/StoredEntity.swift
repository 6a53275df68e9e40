package import ApusCore
import ApusWire
import Foundation
import SwiftProtobuf

/// All of an entity that outlives its activation: what its service keeps, and what it answered (D15).
///
/// It goes to the standby, through a planned hand-over and into a record as one, so that a request's changes and its
/// answer are never apart.
package struct StoredEntity: Sendable, Equatable {
    /// The service's own message, encoded.
    package var content: [UInt8]
    package var memory: RequestMemory

    package init(content: [UInt8], memory: RequestMemory) {
        self.content = content
        self.memory = memory
    }

    /// Throws 10018 where it cannot be encoded, which proto3 does not know.
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
        }
        do {
            return try message.serializedBytes()
        } catch {
            throw ApusError(.internalFailure, "an entity's state cannot be encoded")
        }
    }

    /// Reads what ``encoded()`` made.
    ///
    /// - Throws: 10001 where it is something else. More answers than the bounds allow are left out, the oldest first.
    package init(
        reading bytes: [UInt8], configuration: RequestMemory.Configuration = .init()
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
            content: [UInt8](message.content), memory: RequestMemory(configuration: configuration, carried: carried))
    }
}
