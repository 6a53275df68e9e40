package import ApusClientAPI
import ApusContract
import ApusCore
import ApusSessions
import SwiftProtobuf

// The requests of apps and operators (docs/cluster-recordings.md).
extension RecordingReader {
    /// Adds the requests and their messages. The service that owns the reader calls it.
    package func addRequests(to api: inout ClientAPI) {
        api.addSchemas(recordingSchemas)
        addPlanRequests(to: &api)
        addFindRequests(to: &api)
        addChangeRequests(to: &api)
    }

    private func addPlanRequests(to api: inout ClientAPI) {
        api.on(ClientGetRecordingPlanRequest.self) { request, call throws(ApusError) in
            let channel = try await channel(
                request.device, request.source, account: request.account, for: call.session, .view)
            return try await plan(of: channel)
        }
        api.on(ClientSetRecordingPlanRequest.self) { request, call throws(ApusError) in
            let channel = try await recordable(request.device, request.source, call)
            return try await record(channel, request)
        }
        api.on(ClientEndRecordingPlanRequest.self) { request, call throws(ApusError) in
            let channel = try await recordable(request.device, request.source, call)
            return try await stop(channel)
        }
    }

    /// The channel of a device that belongs to the client's account, or of any device for an operator.
    ///
    /// - Throws: 8002, 12004 and 21031 as ``channel(_:_:account:for:_:)``; 20011 if the device is disabled.
    private func recordable(
        _ device: String, _ source: UInt32, _ call: ClientCall
    ) async throws(ApusError) -> RecordedChannel {
        let channel = try await channel(device, source, account: "", for: call.session, .own)
        guard let record = try await sessions.device(channel.device), record.account == channel.account else {
            throw ApusError(.targetUnknown, "the account has no such device")
        }
        try record.checkEnabled()
        return channel
    }

    private func addFindRequests(to api: inout ClientAPI) {
        api.on(ClientListRecordingDaysRequest.self) { request, call throws(ApusError) in
            let channel = try await channel(
                request.device, request.source, account: request.account, for: call.session, .view)
            let days = try await days(of: channel, zone: request.timezone)
            return .with { $0.list = days }
        }
        api.on(ClientListRecordingTimesRequest.self) { request, call throws(ApusError) in
            let channel = try await channel(
                request.device, request.source, account: request.account, for: call.session, .view)
            let range = try Self.range(request.start, request.end)
            let times = try await times(of: channel, range)
            return .with { $0.list = times.map(\.client) }
        }
        api.on(ClientGetRecordingAddressRequest.self) { request, call throws(ApusError) in
            let channel = try await channel(
                request.device, request.source, account: request.account, for: call.session, .view)
            return try await address(of: channel, request, for: call.session)
        }
        api.on(ClientListRecordedChannelsRequest.self) { request, call throws(ApusError) in
            let account = try call.account(named: request.account)
            return try await channels(of: account, after: request.pageToken)
        }
    }

    private func addChangeRequests(to api: inout ClientAPI) {
        api.on(ClientDeleteRecordingsRequest.self) { request, call throws(ApusError) in
            let channel = try await channel(
                request.device, request.source, account: request.account, for: call.session, .own)
            let range = try Self.range(request.start, request.end)
            let change = try await delete(channel, range)
            return .with {
                ($0.bytes, $0.count, $0.protectedCount) = (change.bytes, change.count, change.protectedCount)
                ($0.done, $0.endTime) = (change.isDone, change.end)
            }
        }
        api.on(ClientProtectRecordingsRequest.self) { request, call throws(ApusError) in
            let channel = try await channel(
                request.device, request.source, account: request.account, for: call.session, .own)
            let range = try Self.range(request.start, request.end)
            let until = request.until == 0 ? Int64.max : request.until * 1000
            guard until > now() else { throw ApusError(.badParameter, "the end of the protection is over") }
            return ClientProtectRecordingsResponse(try await protect(channel, range, until: until))
        }
        api.on(ClientUnprotectRecordingsRequest.self) { request, call throws(ApusError) in
            let channel = try await channel(
                request.device, request.source, account: request.account, for: call.session, .own)
            let range = try Self.range(request.start, request.end)
            return ClientProtectRecordingsResponse(try await protect(channel, range, until: 0))
        }
    }
}

extension ClientProtectRecordingsResponse {
    fileprivate init(_ change: RecordingChange) {
        self.init()
        (count, bytes, done, endTime) = (change.count, change.bytes, change.isDone, change.end)
    }
}
