import ApusClientAPI
import ApusContract
import SwiftProtobuf

/// A call that has ended, for what passes it on to others.
package struct EndedCall: Sendable {
    package var id: String
    /// Such as `hung_up`.
    package var reason: String
    /// Unix milliseconds.
    package var endedMs: Int64
    /// The caller, then those that were called.
    package var parties: [CallParty]
    /// Its record in JSON, as in the history of calls.
    package var json: String

    init(_ state: CallState) {
        let record = ClientCallRecord(state)
        (id, reason, endedMs) = (record.call, record.reason, record.endedMs)
        parties = state.claims.map(\.party)
        json = (try? record.jsonString(options: clientJSON)) ?? ""
    }
}
