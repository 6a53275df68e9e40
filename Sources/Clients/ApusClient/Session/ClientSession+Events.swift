public import ApusContract
public import ApusCore
public import Foundation
import SwiftProtobuf

// Events of devices and accounts, and raw data to servers (IV-D10, IV-D12, docs/events.md).

extension ClientSession {
    /// The events of this app's account from now on: alarms of the devices that it may use, changes of who may use
    /// them, and notices of the operators. As ``events(of:as:bufferMax:)``. The newest 64 of a week are kept for a
    /// session that was away.
    ///
    /// - Parameter account: the app's own. One with more than 56 bytes has no events.
    public func accountEvents(
        of account: AccountID
    ) -> AsyncThrowingStream<TopicEvent<ClientAccountEvent>, any Error> {
        events(of: "events/\(account)")
    }

    /// A device reports an event to all accounts that may use it, and to the hooks of its integrator. They have it when
    /// this returns.
    ///
    /// - Parameters:
    ///   - name: such as `motion`.
    ///   - json: at most 4 KiB, or empty.
    /// - Throws: 8003 if the device is bound to no account, 10007 after more than 60 events in a minute
    ///   (`events.per_minute`), 21031 if the event is not valid, otherwise as ``ask(_:timeout:)``.
    public func reportEvent(_ name: String, json: String = "") async throws(ApusError) {
        _ = try await ask(ClientReportEventRequest.with { ($0.name, $0.json) = (name, json) })
    }

    /// Sends raw data to a server of the integrator, and returns its answer (IV-D12).
    ///
    /// - Parameters:
    ///   - url: the name of the server, and a path after a slash, such as `orders/42`.
    ///   - timeout: 60 s at most.
    /// - Throws: 21008 if the data has more than 30,000 bytes, 21005 if there is no such server or it fails, 21002
    ///   after the time-out, 10007 if too many messages wait, otherwise as ``ask(_:timeout:)``.
    public func sendData(
        _ data: Data, toServer url: String, timeout: Duration = .seconds(10)
    ) async throws(ApusError) -> Data {
        guard data.count <= 30_000 else {
            throw ApusError(.messageTooLarge, "raw data has at most 30,000 bytes")
        }
        let timeout = min(timeout, .seconds(60))
        let request = ClientSendToServerRequest.with {
            ($0.url, $0.data, $0.timeoutMs) = (url, data, UInt32(timeout.milliseconds))
        }
        // The cluster says how it ended.
        return try await ask(request, timeout: timeout + .seconds(1)).data
    }
}
