// The requests about spoken dialogs (VA-7, VA-8, docs/voice.md).

extension ClientListenRequest: ClientRequestMessage {
    public typealias Reply = ClientListenResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            190, "speech.listen", roles: .device, isIdempotent: false,
            fields: ["id": .utterance, "language": .optionalIdentifier, "context": .optionalJSON],
            "Let the cluster listen to this device's microphone, and get what was said and the reply.")
    }
}

extension FieldRule {
    fileprivate static let utterance = Self(pattern: "^[0-9A-Fa-f]{32}$", isRequired: true)
}
