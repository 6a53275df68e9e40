// The requests about recordings in the cluster (IV-E2 to IV-E5, docs/cluster-recordings.md).

extension ClientGetRecordingPlanRequest: ClientRequestMessage {
    public typealias Reply = ClientRecordingPlan
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            220, "recordings.plan", .get("\(FieldRule.channelPath)/plan"), roles: [.app, .admin],
            isForNamedDevices: true, fields: FieldRule.recordings, "Get the recording plan of a channel.")
    }
}

extension ClientSetRecordingPlanRequest: ClientRequestMessage {
    public typealias Reply = ClientRecordingPlan
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            221, "recordings.record", .put("\(FieldRule.channelPath)/plan"), roles: [.app, .admin],
            isForNamedDevices: true, isAudited: true,
            fields: FieldRule.recordings([
                "mode": FieldRule(isRequired: true), "days": FieldRule(range: 1...3650, isRequired: true),
                "bytes_max": FieldRule(pattern: "^(0|[1-9][0-9]{0,17})$"), "start": .unixSeconds, "end": .unixSeconds,
            ]),
            "Record a channel, or change how it is recorded.")
    }
}

extension ClientEndRecordingPlanRequest: ClientRequestMessage {
    public typealias Reply = ClientRecordingPlan
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            222, "recordings.stop", .delete("\(FieldRule.channelPath)/plan"), roles: [.app, .admin],
            isForNamedDevices: true, isAudited: true, fields: FieldRule.recordings,
            "End the recording plan of a channel. Recordings are kept for their days.")
    }
}

extension ClientListRecordingDaysRequest: ClientRequestMessage {
    public typealias Reply = ClientListRecordingDaysResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            223, "recordings.days", .get("\(FieldRule.channelPath)/days"), roles: [.app, .admin],
            isForNamedDevices: true, fields: FieldRule.recordings(["timezone": .zone]),
            "List the days that have recordings of a channel.")
    }
}

extension ClientListRecordingTimesRequest: ClientRequestMessage {
    public typealias Reply = ClientListRecordingTimesResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            224, "recordings.times", .get("\(FieldRule.channelPath)/times"), roles: [.app, .admin],
            isForNamedDevices: true, fields: FieldRule.recordings(FieldRule.times),
            "List the times within a day of which there are recordings, and why they end.")
    }
}

extension ClientGetRecordingAddressRequest: ClientRequestMessage {
    public typealias Reply = ClientGetRecordingAddressResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            225, "recordings.address", .get("\(FieldRule.channelPath)/address"), roles: [.app, .admin],
            isForNamedDevices: true,
            fields: FieldRule.recordings(["start": .requiredSeconds, "end": .unixSeconds, "timezone": .zone]),
            "Get the address of a play list of recordings, and of the same as one MP4 file.")
    }
}

extension ClientListRecordedChannelsRequest: ClientRequestMessage {
    public typealias Reply = ClientListRecordedChannelsResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            226, "recordings.list", .get("/v1/recorded-channels"), roles: [.app, .admin],
            fields: ["account": .optionalIdentifier, "page_token": FieldRule(pattern: "^[A-Za-z0-9._:-]{0,80}$")],
            "List the channels that an account has recordings of.")
    }
}

extension ClientDeleteRecordingsRequest: ClientRequestMessage {
    public typealias Reply = ClientDeleteRecordingsResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            227, "recordings.delete", .delete(FieldRule.channelPath), roles: [.app, .admin], isForNamedDevices: true,
            isAudited: true, fields: FieldRule.recordings(FieldRule.times),
            "Delete the recordings of a range, except those that are protected.")
    }
}

extension ClientProtectRecordingsRequest: ClientRequestMessage {
    public typealias Reply = ClientProtectRecordingsResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            228, "recordings.protect", .post("\(FieldRule.channelPath)/protect"), roles: [.app, .admin],
            isForNamedDevices: true, isAudited: true,
            fields: FieldRule.recordings(FieldRule.times.merging(["until": .unixSeconds]) { $1 }),
            "Keep the recordings of a range beyond the days of their plan.")
    }
}

extension ClientUnprotectRecordingsRequest: ClientRequestMessage {
    public typealias Reply = ClientProtectRecordingsResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            229, "recordings.unprotect", .post("\(FieldRule.channelPath)/unprotect"), roles: [.app, .admin],
            isForNamedDevices: true, isAudited: true, fields: FieldRule.recordings(FieldRule.times),
            "End the protection of the recordings of a range.")
    }
}

extension FieldRule {
    fileprivate static let channelPath = "/v1/devices/{device}/recordings/{source}"
    fileprivate static let recordings = recordings([:])
    fileprivate static let zone = Self(range: -64_800...64_800)
    /// Unix seconds, not 0.
    fileprivate static let requiredSeconds = Self(pattern: "^[1-9][0-9]{0,11}$", isRequired: true)
    fileprivate static let times: [String: Self] = ["start": requiredSeconds, "end": requiredSeconds]

    /// The rules of a request about a channel.
    fileprivate static func recordings(_ others: [String: Self]) -> [String: Self] {
        others.merging([
            "device": .identifier, "source": Self(range: 0...65_535, isRequired: true),
            "account": .optionalIdentifier,
        ]) { $1 }
    }
}
