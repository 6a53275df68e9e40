// The requests about pictures that do not come (IV-G4, IV-G9, docs/diagnosis.md).

extension ClientDiagnoseRequest: ClientRequestMessage {
    public typealias Reply = ClientDiagnosis
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            230, "devices.diagnose", .get("/v1/devices/{device}/diagnosis"), roles: [.app, .customer, .admin],
            isForNamedDevices: true,
            fields: ["device": .identifier, "source": FieldRule(range: 0...65_535), "session": .playSession],
            "Name the stage that keeps the pictures of a device from an app, and the number that shows it.")
    }
}

extension ClientReportPlaysRequest: ClientRequestMessage {
    public typealias Reply = ClientReportPlaysResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            231, "plays.report", .post("/v1/plays"), roles: .app, isForNamedDevices: true,
            fields: ["plays": .plays],
            "Report how the streams that this app plays have begun.")
    }

    /// The most reports of one request.
    public static let playsMax = 8
}

extension ClientPlayReport {
    /// The number of steps of a session (IV-G3).
    public static let stepCount = 13
    /// The most codecs of a report: one for each track.
    public static let codecsMax = 8
}

extension FieldRule {
    /// Of the reports of a request.
    fileprivate static let plays = Self(
        itemCount: 1...ClientReportPlaysRequest.playsMax, isRequired: true,
        fields: [
            "session": FieldRule(pattern: "^[0-9a-f]{32}$", isRequired: true), "device": .identifier,
            "source": FieldRule(range: 0...65_535),
            "steps_ms": FieldRule(itemCount: 0...ClientPlayReport.stepCount),
            "codecs": FieldRule(pattern: "^[A-Za-z0-9]{1,16}$", itemCount: 0...ClientPlayReport.codecsMax),
            "missing_decoder": FieldRule(pattern: "^[A-Za-z0-9]{0,16}$"),
        ])
    fileprivate static let playSession = Self(pattern: "^([0-9a-f]{32})?$")
}
