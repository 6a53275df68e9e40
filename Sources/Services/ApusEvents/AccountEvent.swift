import ApusClientAPI
import ApusContract
import ApusCore
import ApusSessions
import SwiftProtobuf

/// The kinds of events that a hook may subscribe to.
enum HookEventKind: String, CaseIterable {
    case alarm, share, system, property, call
}

extension ClientAccountEvent {
    /// - Throws: 21031 if the name is not valid, or the text is not JSON or is longer than 4 KiB.
    init(
        _ topic: ClientAccountEventTopic, name: String, json: String, device: DeviceID?, at time: Int64
    ) throws(ApusError) {
        self.init()
        guard AccessID(rawValue: name) != nil else {
            throw ApusError(.badParameter, "the name of an event has \(AccessID.limits)")
        }
        guard json.utf8.count <= EventConfiguration.jsonByteCountMax else {
            throw ApusError(
                .badParameter, "the JSON of an event has at most \(EventConfiguration.jsonByteCountMax) bytes")
        }
        guard json.isEmpty || JSONValue(Array(json.utf8)[...]) != nil else {
            throw ApusError(.badParameter, "the event has no valid JSON")
        }
        (self.topic, self.name, self.json, timeMs) = (topic, name, json, time)
        self.device = device?.rawValue ?? ""
    }

    var kind: HookEventKind {
        switch topic {
        case .alarm: .alarm
        case .share: .share
        case .system, .unspecified, .UNRECOGNIZED: .system
        }
    }
}

/// One event as an endpoint of an integrator receives it.
struct HookEvent {
    var kind: HookEventKind
    var name: String
    var device: String
    var account: String
    /// JSON; empty: no data.
    var data: String
    var timeMs: Int64
    /// The model's version after a change of a model; 0: not such a change.
    var version: UInt64 = 0
    /// Part of the event's id. A repetition of the event has the same number and time.
    var number = UInt64.random(in: 0...(.max))

    /// - Parameter id: the same for every repetition of the event.
    func json(id: String) -> String {
        var fields: [(String, JSON)] = [
            ("id", .string(id)), ("topic", .string(kind.rawValue)), ("name", .string(name)),
            ("device", .string(device)), ("account", .string(account)), ("timeMs", .int(Int(timeMs))),
        ]
        if version > 0 { fields.append(("version", .raw("\(version)"))) }
        fields.append(("data", .raw(data.isEmpty ? "null" : data)))
        return JSON.object(fields).text
    }
}

extension HookEvent {
    /// - Parameter number: nil: a random one.
    init(_ event: ClientAccountEvent, _ owner: AccountID, number: UInt64? = nil) {
        self.init(
            kind: event.kind, name: event.name, device: event.device, account: owner.rawValue, data: event.json,
            timeMs: event.timeMs)
        if let number { self.number = number }
    }
}
