import ApusClientAPI
package import ApusConfiguration
package import ApusCore

extension FirmwareConfiguration: ServiceConfiguration {
    /// Reads the keys under `firmware.`.
    package mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        imageByteCountMax = try reader.bytes("firmware.image_bytes_max", default: imageByteCountMax)
        customerByteCountMax = try reader.bytes("firmware.customer_bytes_max", default: customerByteCountMax)
        byteCountMax = try reader.bytes("firmware.bytes_max", default: byteCountMax)
        guard imageByteCountMax <= customerByteCountMax, customerByteCountMax <= byteCountMax else {
            throw reader.invalid(
                "firmware.image_bytes_max",
                "image_bytes_max, customer_bytes_max and bytes_max are expected in this order, the smallest first")
        }
    }
}
