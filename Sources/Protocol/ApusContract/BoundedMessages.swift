import ApusCore
import ApusWire

// The bounds of the numbers in messages between clients and nodes; see `BoundedMessage`.

extension ClientHello: BoundedMessage {}
extension ClientUnpublishRequest: BoundedMessage {}
extension ClientStopRequest: BoundedMessage {}
extension ClientSubscribeRequest: BoundedMessage {}
extension ClientUnsubscribeRequest: BoundedMessage {}
extension ClientSleepRequest: BoundedMessage {}

extension ClientPublishRequest: BoundedMessage {
    package var isWithinBounds: Bool {
        let sourceMax = call.isEmpty ? UInt32(UInt16.max) : Self.sourceOfCalls
        return source <= sourceMax && oldest <= WireNumber.nextMax
    }
}

extension ClientPlayRequest: BoundedMessage {
    package var isWithinBounds: Bool { source <= UInt32(UInt16.max) && after.sequence <= WireNumber.sequenceMax }
}

extension ClientPublishResponse: BoundedMessage {
    package var isWithinBounds: Bool { next <= WireNumber.nextMax }
}

extension ClientPublishAck: BoundedMessage {
    package var isWithinBounds: Bool { next <= WireNumber.nextMax }
}

extension ClientPublishResume: BoundedMessage {
    package var isWithinBounds: Bool { next <= WireNumber.nextMax }
}

extension ClientWelcome: BoundedMessage {
    /// A keepalive interval of a day, or a ticket valid for ten years, is an error.
    package var isWithinBounds: Bool {
        keepaliveMs <= 86_400_000 && streamKeepaliveMs <= 86_400_000 && ticketSeconds <= 315_360_000
            && reconnectSpreadMs <= ClientPong.spreadMsMax
    }
}

extension ClientPong: BoundedMessage {
    fileprivate static let spreadMsMax: UInt32 = 60_000
    package var isWithinBounds: Bool { reconnectSpreadMs <= Self.spreadMsMax }
}

extension ClientPlayResponse: BoundedMessage {}
extension ClientStreamState: BoundedMessage {}
extension ClientPresence: BoundedMessage {}
extension ClientSubscribeResponse: BoundedMessage {}
extension ClientEvent: BoundedMessage {}
extension ClientEndpointsChanged: BoundedMessage {}
extension ClientFailure: BoundedMessage {}

extension ClientRelayCredentialsResponse: BoundedMessage {}

extension ClientRelayCredentialsRequest: BoundedMessage {}
extension ClientAcknowledgeRequest: BoundedMessage {}
extension ClientListDevicesRequest: BoundedMessage {}
extension ClientGetDeviceRequest: BoundedMessage {}
extension ClientPutProductRequest: BoundedMessage {}
extension ClientGetProductRequest: BoundedMessage {}
extension ClientListProductsRequest: BoundedMessage {}
extension ClientDeleteProductRequest: BoundedMessage {}
extension ClientBindDeviceRequest: BoundedMessage {}
extension ClientUnbindDeviceRequest: BoundedMessage {}
extension ClientTransferDeviceRequest: BoundedMessage {}
extension ClientShareDeviceRequest: BoundedMessage {}
extension ClientUnshareDeviceRequest: BoundedMessage {}
extension ClientListSharesRequest: BoundedMessage {}
extension ClientAcceptShareRequest: BoundedMessage {}
extension ClientListInvitationsRequest: BoundedMessage {}
extension ClientCheckLocalAccessRequest: BoundedMessage {}
extension ClientLocalHello: BoundedMessage {}
extension ClientLocalWriteRequest: BoundedMessage {}
extension ClientLocalWriteResponse: BoundedMessage {}
extension ClientGetPresenceRequest: BoundedMessage {}
extension ClientReportCallRequest: BoundedMessage {}
extension ClientListCallsRequest: BoundedMessage {}
extension ClientGetAnsweringMachineRequest: BoundedMessage {}
extension ClientSetAnsweringMachineRequest: BoundedMessage {}
extension ClientSetGreetingRequest: BoundedMessage {}
extension ClientListMessagesRequest: BoundedMessage {}
extension ClientReadMessageRequest: BoundedMessage {}
extension ClientMarkMessageRequest: BoundedMessage {}
extension ClientDeleteMessageRequest: BoundedMessage {}

extension ClientPublishRequest {
    /// The source of a side of a call. It is no device's: a node that does not know calls refuses it.
    package static let sourceOfCalls: UInt32 = 65_536
    /// The source of what a device hears in a dialog (docs/voice.md). Only nodes and the device itself play it.
    public static let microphoneSource: UInt16 = 32_766
}

extension ClientPlayRequest {
    /// Sources from this one on are playbacks of recordings (IV-C5): to play one, a client needs the right to control
    /// the device.
    public static let playbackSourceMin: UInt16 = 32_768
    /// The source of the replies to a device in a dialog (docs/voice.md). Only nodes publish it, and only the device
    /// plays it.
    public static let replySource: UInt16 = 32_767
}

extension ClientRegisterPushRequest: BoundedMessage {}
extension ClientUnregisterPushRequest: BoundedMessage {}

extension ClientStartCallRequest: BoundedMessage {
    /// `calls.ring_time_max` is less.
    package var isWithinBounds: Bool { timeoutSeconds <= 86_400 }
}

extension ClientCreateCustomerRequest: BoundedMessage {}
extension ClientListCustomersRequest: BoundedMessage {}
extension ClientRevokeKeyRequest: BoundedMessage {}
extension ClientAssignDeviceRequest: BoundedMessage {}
extension ClientDisableDeviceRequest: BoundedMessage {}
extension ClientRegisterUserRequest: BoundedMessage {}
extension ClientReportEventRequest: BoundedMessage {}
extension ClientNotifyAccountRequest: BoundedMessage {}
extension ClientPutHookRequest: BoundedMessage {}
extension ClientListHooksRequest: BoundedMessage {}
extension ClientDeleteHookRequest: BoundedMessage {}
extension ClientListFailedEventsRequest: BoundedMessage {}
extension ClientRetryFailedEventsRequest: BoundedMessage {}
extension ClientDropFailedEventsRequest: BoundedMessage {}
extension ClientSendToServerRequest: BoundedMessage {
    package var isWithinBounds: Bool { timeoutMs <= 86_400_000 }
}
extension ClientListUsersRequest: BoundedMessage {}
extension ClientRevokeUserRequest: BoundedMessage {}
extension ClientRevokeAccessRequest: BoundedMessage {}

extension ClientIssueKeyRequest: BoundedMessage {
    package var isWithinBounds: Bool { (0...999_999_999).contains(lifetimeSeconds) }
}

extension ClientAuthorizeUserRequest: BoundedMessage {
    package var isWithinBounds: Bool { (0...999_999_999).contains(lifetimeSeconds) }
}

extension ClientGrantAccessRequest: BoundedMessage {
    package var isWithinBounds: Bool { (0...999_999_999).contains(lifetimeSeconds) }
}

extension ClientAuthorizeDeviceRequest: BoundedMessage {
    package var isWithinBounds: Bool { (0...999_999_999).contains(lifetimeSeconds) }
}

extension ClientReadPropertyRequest: BoundedMessage {}
extension ClientWritePropertyRequest: BoundedMessage {}
extension ClientAddUserPropertyRequest: BoundedMessage {}
extension ClientDeleteUserPropertyRequest: BoundedMessage {}
extension ClientReportPropertyRequest: BoundedMessage {}
extension ClientListPendingPropertiesRequest: BoundedMessage {}
extension ClientSendCommandRequest: BoundedMessage {
    /// A command is kept for a year at most; `commands.ttl_max` sets less.
    package var isWithinBounds: Bool { ttlSeconds <= 31_536_000 }
}

extension ClientSayRequest: BoundedMessage {}
extension ClientGetDialogRequest: BoundedMessage {}
extension ClientStopDialogRequest: BoundedMessage {}
extension ClientGetVoiceHomeRequest: BoundedMessage {}
extension ClientPutVoiceHomeRequest: BoundedMessage {}
extension ClientSendDialogEventRequest: BoundedMessage {}
extension ClientListenRequest: BoundedMessage {
    package var isWithinBounds: Bool { sequence <= WireNumber.sequenceMax }
}
extension ClientTapDialogRequest: BoundedMessage {}
extension ClientSpokenDialogRequest: BoundedMessage {}
extension ClientWakeDialogRequest: BoundedMessage {
    /// Levels that a microphone can have, and a wake phrase of the last minute.
    package var isWithinBounds: Bool {
        (-200...200).contains(signalToNoiseDb) && (-200...200).contains(energyDb) && sinceMs <= 60_000
    }
}
extension ClientSynchronizeDialogRequest: BoundedMessage {}
extension ClientGetAuthorizationRequest: BoundedMessage {}
extension ClientApproveAuthorizationRequest: BoundedMessage {}
extension ClientRefuseAuthorizationRequest: BoundedMessage {}

extension ClientGetCommandRequest: BoundedMessage {}
extension ClientListCommandsRequest: BoundedMessage {}
extension ClientCancelCommandRequest: BoundedMessage {}
extension ClientSetCommandOrderRequest: BoundedMessage {}
extension ClientAcknowledgeCommandsRequest: BoundedMessage {}
extension ClientAnswerCommandRequest: BoundedMessage {}
extension ClientSetTimerRequest: BoundedMessage {}
extension ClientListTimersRequest: BoundedMessage {}
extension ClientCancelTimerRequest: BoundedMessage {}
extension ClientChangeTimerRequest: BoundedMessage {}
extension ClientStopRingingRequest: BoundedMessage {}
extension ClientDiagnoseRequest: BoundedMessage {
    package var isWithinBounds: Bool { source <= UInt32(UInt16.max) }
}
extension ClientReportPlaysRequest: BoundedMessage {
    package var isWithinBounds: Bool { plays.allSatisfy(\.isWithinBounds) }
}
extension ClientPlayReport: BoundedMessage {
    /// Times of at most 31 years, in milliseconds, and counts that a sum does not overflow.
    package var isWithinBounds: Bool {
        let times = [ageMs, receivedMs, decodedMs, renderedMs]
        let counts = [received, decoded, rendered, skipped, dropped]
        return source <= UInt32(UInt16.max) && times.allSatisfy { $0 <= 999_999_999_999 }
            && counts.allSatisfy { $0 <= WireNumber.sequenceMax }
    }
}
extension ClientListNodesRequest: BoundedMessage {}
extension ClientDrainNodeRequest: BoundedMessage {}
extension ClientUndrainNodeRequest: BoundedMessage {}
extension ClientListShardsRequest: BoundedMessage {}
extension ClientCordonNodeRequest: BoundedMessage {}
extension ClientUncordonNodeRequest: BoundedMessage {}
extension ClientExplainShardRequest: BoundedMessage {}
extension ClientListMapChangesRequest: BoundedMessage {}

extension ClientSetNodeWeightRequest: BoundedMessage {
    package var isWithinBounds: Bool { (1...10_000).contains(weight) }
}

extension ClientListSessionsRequest: BoundedMessage {}
extension ClientEndSessionRequest: BoundedMessage {}
extension ClientListChannelsRequest: BoundedMessage {}

extension ClientIssueTokenRequest: BoundedMessage {
    /// A token is valid for 31 years at most.
    package var isWithinBounds: Bool { (0...999_999_999).contains(lifetimeSeconds) }
}

extension ClientCreateSignInCodeRequest: BoundedMessage {}

extension ClientRevokeTokensRequest: BoundedMessage {
    package var isWithinBounds: Bool {
        (0...999_999_999_999).contains(before) && (0...999_999_999).contains(keepSeconds)
    }
}

extension ClientCreateFirmwareRequest: BoundedMessage {}
extension ClientUploadFirmwareRequest: BoundedMessage {}
extension ClientSealFirmwareRequest: BoundedMessage {}
extension ClientGetFirmwareRequest: BoundedMessage {}
extension ClientListFirmwareRequest: BoundedMessage {}
extension ClientDeleteFirmwareRequest: BoundedMessage {}
extension ClientSetFirmwareGroupRequest: BoundedMessage {}
extension ClientDeleteFirmwareGroupRequest: BoundedMessage {}
extension ClientGetFirmwareGroupRequest: BoundedMessage {}
extension ClientListFirmwareOutcomesRequest: BoundedMessage {}
extension ClientQueryFirmwareRequest: BoundedMessage {}
extension ClientReportFirmwareRequest: BoundedMessage {}

extension ClientRollOutFirmwareRequest: BoundedMessage {
    package var isWithinBounds: Bool {
        percentage <= 100 && stopFailurePercent <= 100 && stopFailures <= 1_000_000_000
            && ifRevision <= UInt64(Int64.max)
    }
}

extension ClientReadFirmwareRequest: BoundedMessage {
    package var isWithinBounds: Bool { offset <= FirmwareManifest.sizeMax }
}

extension ClientListRecordedChannelsRequest: BoundedMessage {}

extension ClientGetRecordingPlanRequest: BoundedMessage {
    package var isWithinBounds: Bool { source <= UInt32(UInt16.max) }
}

extension ClientEndRecordingPlanRequest: BoundedMessage {
    package var isWithinBounds: Bool { source <= UInt32(UInt16.max) }
}

extension ClientSetRecordingPlanRequest: BoundedMessage {
    package var isWithinBounds: Bool {
        source <= UInt32(UInt16.max) && bytesMax <= UInt64(Int64.max) && start.isUnixTime && end.isUnixTime
    }
}

extension ClientListRecordingDaysRequest: BoundedMessage {
    package var isWithinBounds: Bool { source <= UInt32(UInt16.max) }
}

extension ClientListRecordingTimesRequest: BoundedMessage {
    package var isWithinBounds: Bool { source <= UInt32(UInt16.max) && start.isUnixTime && end.isUnixTime }
}

extension ClientGetRecordingAddressRequest: BoundedMessage {
    package var isWithinBounds: Bool { source <= UInt32(UInt16.max) && start.isUnixTime && end.isUnixTime }
}

extension ClientDeleteRecordingsRequest: BoundedMessage {
    package var isWithinBounds: Bool { source <= UInt32(UInt16.max) && start.isUnixTime && end.isUnixTime }
}

extension ClientProtectRecordingsRequest: BoundedMessage {
    package var isWithinBounds: Bool {
        source <= UInt32(UInt16.max) && start.isUnixTime && end.isUnixTime && until.isUnixTime
    }
}

extension ClientUnprotectRecordingsRequest: BoundedMessage {
    package var isWithinBounds: Bool { source <= UInt32(UInt16.max) && start.isUnixTime && end.isUnixTime }
}

extension Int64 {
    /// Unix seconds, as requests have them.
    fileprivate var isUnixTime: Bool { (0...999_999_999_999).contains(self) }
}
