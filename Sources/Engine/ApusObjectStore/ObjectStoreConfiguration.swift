package import ApusConfiguration
package import ApusCore

/// Where a node keeps objects: recordings, images of firmware, greetings and messages. One key moves all of them.
package struct ObjectStoreConfiguration: Sendable, Hashable {
    /// A directory, which the nodes of a machine may share; nil for S3, or for the default directory.
    package var directory: String?
    /// A bucket; nil for a directory.
    package var bucket: S3Configuration?
    package var limits = ObjectStoreLimits()

    package init() {}

    /// Reads the keys under `objects.`.
    ///
    /// - Throws: 10022 for an invalid value.
    package mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        let store = try reader.string("objects.store", default: "")
        let endpoint = try reader.string("objects.s3_endpoint", default: "")
        let region = try reader.string("objects.s3_region", default: "us-east-1")
        let addressing = try reader.string("objects.s3_addressing", default: "path")
        let credentialsFile = try reader.path("objects.s3_credentials_file", default: "")
        let authorityFile = try reader.path("objects.s3_authority_file", default: "")
        limits.objectByteCountMax =
            try reader.int("objects.object_mebibytes_max", default: limits.objectByteCountMax >> 20, in: 1...4096) << 20
        limits.runningMax = try reader.int("objects.operations_max", default: limits.runningMax, in: 1...256)
        limits.operationTimeout = try reader.duration("objects.timeout", default: limits.operationTimeout)
        guard (.seconds(1) ... .seconds(3600)).contains(limits.operationTimeout) else {
            throw reader.invalid("objects.timeout", "1s to 1h are expected")
        }
        guard store.hasPrefix("s3:") else {
            directory = store.isEmpty ? nil : try reader.path("objects.store", default: "")
            return
        }
        do throws(ApusError) {
            var bucket = try S3Configuration(place: store)
            guard let addressing = S3Configuration.Addressing(rawValue: addressing) else {
                throw ApusError(.configurationInvalid, "path or host are expected")
            }
            bucket.addressing = addressing
            bucket.endpoint = endpoint.isEmpty ? nil : endpoint
            bucket.region = region
            bucket.credentialsFile = credentialsFile.isEmpty ? nil : credentialsFile
            bucket.authorityFile = authorityFile.isEmpty ? nil : authorityFile
            _ = try bucket.target()
            self.bucket = bucket
        } catch {
            throw reader.invalid("objects.store", error.message)
        }
    }

    /// Opens the store.
    ///
    /// - Parameter directory: the directory of objects if none is configured.
    /// - Throws: 10022 if there are no valid keys for S3, 10021 or 10041 if the directory cannot be made.
    package func open(defaultDirectory directory: String) async throws(ApusError) -> any ObjectStore {
        if let bucket { return try await S3ObjectStore(bucket, limits: limits) }
        return try await DirectoryObjectStore(path: self.directory ?? directory, limits: limits)
    }
}
