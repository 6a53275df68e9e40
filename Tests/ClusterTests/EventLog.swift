import ApusClient
import ApusContract
import ApusCore
import Synchronization

/// The events that an app has heard.
final class EventLog: Sendable {
    private let seen = Mutex<(names: [String], error: ErrorCode?)>(([], nil))

    init(_ events: AsyncThrowingStream<ClientSession.TopicEvent<ClientAccountEvent>, any Error>) {
        Task { [weak self] in
            do {
                for try await event in events {
                    let topic =
                        switch event.message.topic {
                        case .alarm: "alarm"
                        case .share: "share"
                        case .system: "system"
                        case .unspecified, .UNRECOGNIZED: "?"
                        }
                    let message = event.message
                    self?.seen.withLock {
                        $0.names.append("\(topic) \(message.name) \(message.device) \(message.json)")
                    }
                }
            } catch {
                self?.seen.withLock { $0.error = (error as? ApusError)?.code }
            }
        }
    }

    var names: [String] { seen.withLock { $0.names } }
    var error: ErrorCode? { seen.withLock { $0.error } }

    func repeated(but other: String) -> [String] {
        let names = names.filter { $0 != other }
        return Dictionary(grouping: names) { $0 }.filter { $0.value.count > 1 }.map(\.key)
    }
}
