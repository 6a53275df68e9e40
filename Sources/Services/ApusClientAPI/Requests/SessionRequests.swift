import ApusContract
import ApusCore
package import ApusSessions
package import ApusStorage
import ApusWire
import Foundation
import SwiftProtobuf

// What clients ask of sessions, devices and presence, and the subscriptions to all topics.

extension ClientAPI {
    /// Adds the requests about topics. Each concerns the connection that it comes over.
    package mutating func addTopicRequests(_ topics: TopicService) {
        // In the order in which they came for each topic: a subscription is not overtaken by its end.
        on(ClientSubscribeRequest.self, byteCountMax: 512, orderKey: { $0.topic }) {
            request, call throws(ApusError) in
            let (kind, topic) = try call.topic(request.topic)
            try await kind.subscribe(topic, after: TopicPosition(cursor: request.after), call)
            return .with { $0.cursor = topics.start(topic, call)?.text ?? "" }
        }
        on(ClientUnsubscribeRequest.self, byteCountMax: 512, orderKey: { $0.topic }) {
            request, call throws(ApusError) in
            let (kind, topic) = try call.topic(request.topic)
            await kind.unsubscribe(topic, call)
            return ClientUnsubscribeResponse()
        }
        on(ClientAcknowledgeRequest.self, byteCountMax: 512, orderKey: { $0.topic }) {
            request, call throws(ApusError) in
            let (_, topic) = try call.topic(request.topic)
            guard let connection = call.connection, let position = try TopicPosition(cursor: request.cursor) else {
                throw ApusError(.badParameter, "the cursor is missing")
            }
            topics.acknowledged(connection, topic, position)
            return ClientAcknowledgeResponse()
        }
    }

    /// Adds the requests about devices and the relay.
    package mutating func addSessionRequests(_ sessions: SessionService, records: any RecordStore) {
        let records = SessionRecords(records)
        add(PresenceTopics(sessions))
        on(ClientSleepRequest.self, orderKey: { _ in "devices.sleep" }) { request, call throws(ApusError) in
            guard call.session.device != nil, call.connection != nil else {
                throw ApusError(.notAllowed, "only a device that is connected sleeps")
            }
            _ = try await sessions.setAsleep(call.session, request.asleep).get()
            for kind in call.topics { try await kind.slept(request.asleep, call) }
            return ClientSleepResponse()
        }
        on(ClientRelayCredentialsRequest.self) { _, call throws(ApusError) in
            ClientRelayCredentialsResponse(try sessions.relayCredentials(for: call.session).get())
        }
        on(ClientGetPresenceRequest.self) { request, call throws(ApusError) in
            let device = try DeviceID(checking: request.device, "the device's id")
            let presence = try await sessions.inspect(device, for: call.session, subscribe: false).get()
            return .with {
                ($0.device, $0.online, $0.time) = (request.device, presence.online.rawValue, presence.time)
            }
        }
        on(ClientGetDeviceRequest.self) { request, call throws(ApusError) in
            let device = try DeviceID(checking: request.device, "the device's id")
            guard let record = try await records.record(of: device), call.session.mayKnow(record) else {
                throw ApusError(.targetUnknown, "no such device")
            }
            return ClientDevice(record, seen: try await records.lastSeen(of: [device]).first ?? 0)
        }
        on(ClientListDevicesRequest.self) { request, call throws(ApusError) in
            let account = try await records.account(named: request.account, call)
            let last = try request.pageToken.isEmpty ? nil : DeviceID(checking: request.pageToken, "pageToken")
            let limit = Int(min(request.pageSize == 0 ? 100 : request.pageSize, 500))
            let found = try await records.records(of: account, after: last, limit: limit)
            let known = found.filter { call.session.mayKnow($0) }
            let seen = try await records.lastSeen(of: known.map(\.device))
            return .with {
                $0.devices = zip(known, seen).map { ClientDevice($0, seen: $1) }
                if found.count == limit { $0.nextPageToken = found.last?.device.rawValue ?? "" }
            }
        }
    }
}

extension ClientCall {
    /// Throws 21031 where the text is no topic, 10004 where no service has topics of its kind, 12004 where there is no
    /// connection.
    fileprivate func topic(_ text: String) throws(ApusError) -> (kind: any ClientTopicKind, ClientTopic) {
        let topic = try ClientTopic(text)
        guard connection != nil else { throw ApusError(.badParameter, "events need a connection") }
        guard let kind = topics.first(where: { $0.name == topic.kind }) else {
            throw ApusError(.targetUnknown, "there are no topics of this kind")
        }
        return (kind, topic)
    }
}

extension Session {
    /// An operator knows all devices; an integrator those that are assigned to it; an app those that its account may
    /// use. A token that names devices knows no others.
    package func mayKnow(_ record: DeviceRecord) -> Bool {
        guard allowedDevices?.contains(record.device) ?? true else { return false }
        guard role != .admin else { return true }
        guard role != .customer else { return record.customer?.rawValue == account.rawValue }
        return record.right(of: account) != nil
    }
}

extension ClientDevice {
    /// - Parameter seen: when the device was last seen, in Unix seconds; 0 if that is unknown.
    fileprivate init(_ record: DeviceRecord, seen: Int64) {
        self.init()
        device = record.device.rawValue
        account = record.account?.rawValue ?? ""
        boundAt = (record.boundAtUnixMilliseconds ?? 0) / 1000
        // The answer hides the time before the account had the device.
        lastSeen = max((record.lastSeenUnixMilliseconds ?? 0) / 1000, seen >= boundAt ? seen : 0)
        disabled = record.isDisabled
    }
}

extension ClientRelayCredentialsResponse {
    package init(_ grant: RelayGrant) {
        self.init()
        urls = grant.urls
        username = grant.username
        credential = grant.credential
        lifetimeSeconds = grant.lifetimeSeconds
        iceServers = [
            .with { ($0.urls, $0.username, $0.credential) = (grant.urls, grant.username, grant.credential) }
        ]
    }
}
